"""Weights of tokens by hand, and their sums over a step."""

import numpy as np
import pytest

from turngym.errors import ConfigError
from turngym.learner.losses.aggregations import LOSS_AGGREGATIONS, aggregation_weights, count_totals

MEANS = ["token-mean", "seq-mean-token-mean"]


def test_a_token_weighs_the_same_on_a_short_and_on_a_long_rank(make_batch):
    """R36: 10 tokens on one rank and 1000 on the other weigh 1/1010 each, not 0.05 and 0.0005."""
    batch = make_batch([[0] + [1] * 10, [0] + [1] * 1000])
    totals = count_totals(batch)
    for part in (batch.select([0]), batch.select([1])):
        weights = aggregation_weights("token-mean", part, totals)
        assert weights[part.is_action] == pytest.approx(1 / 1010)
        assert weights[0] == 0


def test_an_attempt_of_several_sequences_counts_once_in_sequence_means(make_batch):
    """Attempt 0 has 1 + 3 action tokens in two sequences, attempt 2 has 2, attempt 1 none: 1/(2 * 4) and 1/(2 * 2)."""
    batch = make_batch([[0, 1], [0, 1, 0, 1, 1], [0, 1, 1], [0, 0]], attempts=[0, 0, 2, 1])
    totals = count_totals(batch)
    assert (totals.num_actions, totals.num_attempts, totals.actions_per_attempt_A.tolist()) == (6, 2, [4, 0, 2])
    assert (totals.num_tokens, totals.version) == (12, 3)
    weights = aggregation_weights("seq-mean-token-mean", batch, totals)
    assert weights.tolist() == [0, 1 / 8, 0, 1 / 8, 0, 1 / 8, 1 / 8, 0, 1 / 4, 1 / 4, 0, 0]
    alone = aggregation_weights("seq-mean-token-mean", batch.select([1]), totals)
    assert alone.tolist() == [0, 1 / 8, 0, 1 / 8, 1 / 8]


def test_sums_over_attempts(make_batch):
    """Two attempts have actions: each of their tokens weighs 1/2, and 1/(2 * 10) with a constant length of 10."""
    batch = make_batch([[0, 1], [0, 1, 0, 1, 1], [0, 1, 1], [0, 0]], attempts=[0, 0, 2, 1])
    totals = count_totals(batch)
    for part in (batch, batch.select([1]), batch.select([])):
        summed = aggregation_weights("seq-mean-token-sum", part, totals)
        assert summed.tolist() == [0.5 if action else 0 for action in part.is_action]
        normed = aggregation_weights("seq-mean-token-sum-norm", part, totals, 10)
        assert normed == pytest.approx(summed / 10)


def test_a_constant_length_must_be_known(make_batch):
    batch = make_batch([[0, 1]])
    for length in (None, 0):
        with pytest.raises(ConfigError, match=r"--actor\.loss_agg_length"):
            aggregation_weights("seq-mean-token-sum-norm", batch, count_totals(batch), length)


@pytest.mark.parametrize("mode", MEANS)
def test_weights_of_a_step_sum_to_one(mode, make_batch):
    batch = make_batch([[0, 1, 1], [0, 0, 1], [0, 1, 1, 1, 1]], attempts=[5, 5, 3])
    assert aggregation_weights(mode, batch, count_totals(batch)).sum() == pytest.approx(1)


@pytest.mark.parametrize("mode", list(LOSS_AGGREGATIONS))
def test_a_step_without_actions_has_no_weights(mode, make_batch):
    empty = make_batch([[0, 0]])
    assert aggregation_weights(mode, empty, count_totals(empty), 4).tolist() == [0, 0]


def test_the_version_of_a_step_is_the_newest_unless_told(make_batch):
    batch = make_batch([[0, 1, 1]])
    batch.versions[1] = 1
    assert count_totals(batch).version == 3
    assert count_totals(batch, 5).version == 5
    assert count_totals(batch.select([])).version == -1
    assert np.array_equal(count_totals(batch.select([])).actions_per_attempt_A, [])
