"""The toy policy says of given tokens what it says of those it samples."""

import numpy as np
import pytest

from turngym.agents import Grammar, Sampling, Shape
from turngym.agents.base import RequestRefusedError
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


def test_a_shape_changes_logits_as_vllm_does():
    """Bias, then repetition over prompt and answer, then presence and frequency over the answer alone."""
    policy = ToyPolicy(5)
    whole = np.array([0, 3, 1, 1], np.int32)  # a prompt of two and two sampled tokens
    plain = policy.log_distribution(whole, Sampling(9), 2)
    shape = Shape(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, logit_bias=((0, 1.5),), min_tokens=3
    )
    shaped = policy.log_distribution(whole, Sampling(9, shape=shape, stop_token_ids=(4,)), 2)
    (logits,) = [row for row in policy._logits if np.allclose(row - np.log(np.exp(row).sum()), plain)]
    wanted = logits + np.array([1.5, 0, 0, 0, 0])
    for token in (0, 1, 3):
        wanted[token] = wanted[token] / 2 if wanted[token] > 0 else wanted[token] * 2
    wanted[1] -= 0.5 + 2 * 0.25
    wanted[4] = -np.inf  # it would stop, and two of at least three tokens are there
    np.testing.assert_allclose(shaped, wanted - np.log(np.exp(wanted).sum()), atol=1e-9)


@pytest.mark.parametrize("shape", [Shape(grammar=Grammar.json_object()), Shape(bad_words=("a",))])
def test_what_wants_the_text_of_tokens_is_refused(shape):
    with pytest.raises(RequestRefusedError, match="no text"):
        ToyPolicy(5).sample(np.array([1], np.int32), Sampling(1, shape=shape))
