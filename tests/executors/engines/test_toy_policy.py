"""The toy policy says of given tokens what it says of those it samples."""

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.executors.engines.toy_policy import ToyPolicy


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_tokens_score_as_they_were_sampled(temperature):
    policy = ToyPolicy(11)
    prompt = np.array([3, 1, 4], np.int32)
    token_ids, logprobs = policy.sample(prompt, Sampling(6, temperature=temperature))
    scores = policy.score(np.concatenate([prompt, token_ids]), temperature)
    assert np.isnan(scores[0])
    np.testing.assert_allclose(scores[3:], logprobs, atol=1e-6)


def test_the_scores_of_all_next_tokens_are_a_distribution():
    policy = ToyPolicy(11)
    start = np.array([3, 1, 4], np.int32)
    total = sum(np.exp(policy.score(np.append(start, np.int32(token)))[-1]) for token in range(11))
    assert total == pytest.approx(1.0, abs=1e-6)
