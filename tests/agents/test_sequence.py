"""The arrays of a sequence: one length, a logprob exactly on each action."""

import numpy as np
import pytest

from turngym.agents import Completion, Sequence, SequenceBuilder, StopReason
from turngym.errors import TrajectoryError


def arrays(**changes):
    fields = {
        "token_ids": np.array([5, 6, 7], np.int32),
        "is_action": np.array([False, True, True]),
        "logprobs": np.array([np.nan, -0.5, -1.5], np.float32),
        "versions": np.array([-1, 3, 4], np.int32),
        "turn": np.array([-1, 0, 0], np.int32),
        "samplings": {},
    }
    return {**fields, **changes}


def test_builder_appends_context_and_completions(completion_of, sampling):
    builder = SequenceBuilder()
    builder.add_context([1, 2, 3], -1)
    builder.add_completion(completion_of([4, 5], version=7), sampling, 0)
    assert builder.token_ids().tolist() == [1, 2, 3, 4, 5]
    builder.add_context([6], 0)
    sequence = builder.build()
    assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert sequence.is_action.tolist() == [False, False, False, True, True, False]
    assert sequence.versions.tolist() == [-1, -1, -1, 7, 7, -1]
    assert sequence.turn.tolist() == [-1, -1, -1, 0, 0, 0]
    assert sequence.logprobs[3:5].tolist() == [-0.5, -0.5]
    assert np.isnan(sequence.logprobs[[0, 1, 2, 5]]).all()
    assert sequence.samplings == {0: sampling}
    assert (sequence.parent, sequence.fork_reason) == (None, None)
    assert (len(sequence), sequence.num_actions, builder.num_tokens) == (6, 2, 6)


def test_building_does_not_stop_the_builder(completion_of, sampling):
    builder = SequenceBuilder(parent=(0, 2), fork_reason="compacted")
    builder.add_context([1], -1)
    early = builder.build()
    builder.add_completion(completion_of([2]), sampling, 0)
    assert len(early) == 1
    assert builder.build().num_actions == 1
    assert (early.parent, early.fork_reason) == ((0, 2), "compacted")


def test_ids_are_not_copied_at_each_turn_and_cannot_be_written(completion_of, sampling):
    builder = SequenceBuilder()
    seen = []
    for turn in range(300):
        builder.add_context([turn] * 3, turn - 1)
        builder.add_completion(completion_of([turn, turn]), sampling, turn)
        seen.append(builder.token_ids())
    assert len({id(ids.base) for ids in seen}) < 20  # ln(1500 / 5) / ln(1.5) = 14 times, each half as long again
    for turn, ids in enumerate(seen):  # what was given away stays as it was
        assert ids.tolist() == [k for k in range(turn + 1) for _ in range(5)]
    with pytest.raises(ValueError, match="read-only"):
        seen[-1][0] = 7
    assert builder.build().token_ids.tolist() == seen[-1].tolist()


def test_empty_sequence_has_arrays_of_no_length():
    sequence = SequenceBuilder().build()
    assert len(sequence) == 0
    assert sequence.token_ids.dtype == np.int32
    assert sequence.is_action.dtype == np.bool_
    assert sequence.logprobs.dtype == np.float32


def test_completion_without_logprobs_is_refused(sampling):
    completion = Completion(np.array([1], np.int32), None, np.array([0], np.int32), StopReason.STOP)
    with pytest.raises(TrajectoryError, match="without logprobs"):
        SequenceBuilder().add_completion(completion, sampling, 0)


def test_consistent_arrays_are_accepted():
    assert Sequence(**arrays()).num_actions == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn": np.array([0], np.int32)}, r"one length, got \[3, 3, 3, 3, 1\]"),
        ({"logprobs": np.array([np.nan, np.nan, -1.0], np.float32)}, "logprob is wanted exactly where"),
        ({"logprobs": np.array([0.0, -0.5, -1.0], np.float32)}, "logprob is wanted exactly where"),
        ({"versions": np.array([0, 3, 4], np.int32)}, "version is wanted exactly where"),
    ],
)
def test_inconsistent_arrays_are_refused(changes, message):
    with pytest.raises(TrajectoryError, match=message):
        Sequence(**arrays(**changes))
