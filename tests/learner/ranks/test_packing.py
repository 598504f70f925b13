"""Micro-batches: full, complete, balanced, and as many on each rank."""

import numpy as np
import pytest

from turngym.errors import ConfigError
from turngym.learner.ranks.packing import MicroBatching, distribute, pack, pack_evenly


@pytest.fixture
def lengths():
    return np.random.default_rng(0).lognormal(6, 0.8, 500).astype(int).clip(1, 4096)


def test_by_hand():
    # Longest first: 6 | 5 | 4 fills the 6 | 3 and 2 fill the 5; 30 is too long for any and goes alone.
    assert pack([3, 6, 30, 5, 4, 2], max_tokens=10) == [[2], [1, 4], [0, 3, 5]]


def test_every_sequence_once_within_the_limit(lengths):
    micros = pack(lengths, 4096)
    assert sorted(i for micro in micros for i in micro) == list(range(500))
    assert all(lengths[micro].sum() <= 4096 for micro in micros)
    assert len(micros) <= np.ceil(lengths.sum() / 4096) * 1.05 + 1


def test_longer_than_the_limit_goes_alone():
    assert pack([100, 100, 1], 10) == [[0], [1], [2]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_get_the_same_steps_and_about_the_same_tokens(lengths, world_size):
    plan = distribute(lengths, world_size, MicroBatching(max_tokens=4096))
    assert len(plan) == world_size
    assert len({len(micros) for micros in plan}) == 1
    assert sorted(i for micros in plan for micro in micros for i in micro) == list(range(500))
    tokens = [sum(int(lengths[micro].sum()) for micro in micros) for micros in plan]
    assert max(tokens) - min(tokens) <= max(lengths)
    assert max(tokens) / (sum(tokens) / world_size) < 1.02
    for micros in plan:
        assert all(micros[step] or not micros[step + 1] for step in range(len(micros) - 1))


def test_fewer_sequences_than_ranks_leaves_empty_micro_batches():
    assert distribute([5, 9], 3, MicroBatching(max_tokens=10)) == [[[1]], [[0]], [[]]]


def test_nothing_at_all_is_nothing_everywhere():
    assert distribute([], 2, MicroBatching(max_tokens=10)) == [[], []]
    assert pack([], 10) == []


def test_equal_inputs_give_equal_plans(lengths):
    batching = MicroBatching(max_tokens=2048)
    assert distribute(lengths, 3, batching) == distribute(list(lengths), 3, batching)


def test_so_many_sequences_by_hand():
    # 30 | 6 | 5 open three micro-batches of two; 4, 3 and 2 then go to the lightest that has room.
    assert pack_evenly([3, 6, 30, 5, 4, 2], 2) == [[2, 5], [0, 1], [3, 4]]
    assert pack_evenly([3, 6, 30, 5, 4], 5) == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 4, 9])
def test_so_many_sequences_in_each_forward_pass(lengths, world_size, size):
    plan = distribute(lengths, world_size, MicroBatching(max_sequences=size))
    assert sorted(i for micros in plan for micro in micros for i in micro) == list(range(500))
    assert all(len(micro) <= size for micros in plan for micro in micros)
    fewest = int(np.ceil(np.ceil(500 / world_size) / size))
    assert [len(micros) for micros in plan] == [fewest] * world_size


def test_ranks_are_balanced_by_work_where_attention_counts():
    """At length 100 attention doubles the work: 100 costs 200, ten of 10 cost 110."""
    lengths = [100] + [10] * 20
    by_tokens = distribute(lengths, 2, MicroBatching(max_tokens=1000))
    by_work = distribute(lengths, 2, MicroBatching(max_tokens=1000, attention_length=100))
    assert [len(micro) for (micro,) in by_tokens] == [6, 15]
    assert [len(micro) for (micro,) in by_work] == [2, 19]  # 200 + 11 and 209


def test_long_tails_stay_balanced():
    lengths = np.random.default_rng(0).lognormal(8.3, 0.9, 128).astype(int).clip(1, 32768)
    batching = MicroBatching(max_tokens=32768, attention_length=12 * 896)
    plan = distribute(lengths, 8, batching)
    work = [batching.costs(lengths[[i for micro in micros for i in micro]]).sum() for micros in plan]
    assert max(work) / np.mean(work) < 1.02


def test_bad_values_are_refused():
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        pack([1], 0)
    with pytest.raises(ConfigError, match="got lengths"):
        pack([3, 0], 10)
    with pytest.raises(ConfigError, match="at least 1 rank"):
        distribute([1], 0, MicroBatching(max_tokens=10))
    with pytest.raises(ConfigError, match="at least 1 token or sequence, got 0"):
        MicroBatching(max_sequences=0)
    for both_or_none in ({}, {"max_tokens": 10, "max_sequences": 2}):
        with pytest.raises(ConfigError, match="one of the two"):
            MicroBatching(**both_or_none)
