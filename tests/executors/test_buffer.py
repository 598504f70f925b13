import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import ConfigError, TrajectoryError
from turngym.executors.buffer import Buffer, Group
from turngym.executors.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd


def attempt(number, versions, *, task="t", failure=None):
    """A trajectory whose completion was sampled by these versions, one per token."""
    builder = SequenceBuilder()
    builder.add_context([1, 2], -1)
    if versions:
        ids = np.arange(len(versions), dtype=np.int32)
        logprobs = np.full(len(versions), -1, np.float32)
        completion = Completion(ids, logprobs, np.asarray(versions, np.int32), StopReason.STOP)
        builder.add_completion(completion, Sampling(8), 0)
    return Trajectory(
        task=Task(id=task),
        attempt=number,
        sequences=(builder.build(),),
        messages=(),
        rewards_per_turn=np.array([1.0]),
        turn_ends=(TurnEnd.STOP,),
        end_reason=EndReason.FAILED if failure else EndReason.TERMINATED,
        failure=failure,
    )


def group(*trajectories, task="t"):
    return Group(Task(id=task), trajectories)


def test_groups_leave_in_the_order_they_came():
    buffer = Buffer()
    for name in "abc":
        buffer.put(group(attempt(0, [0], task=name), task=name))
    assert [g.task.id for g in buffer.take(2, version=0)] == ["a", "b"]
    assert len(buffer) == 1
    assert [g.task.id for g in buffer.take(2, version=0)] == ["c"]
    assert buffer.take(2, version=0) == []


def test_age_is_that_of_the_oldest_token_when_taken():
    buffer = Buffer(max_staleness=1)
    buffer.put(group(attempt(0, [4, 4]), attempt(1, [3, 4]), attempt(2, [2, 4]), attempt(3, [])))
    (taken,) = buffer.take(1, version=4)
    assert [t.is_valid for t in taken.trajectories] == [True, True, False, True]
    stale = taken.trajectories[2]
    assert stale.failure.kind is FailureKind.STALE
    assert stale.failure.message == "sampled at version 2, 2 versions old; max_staleness is 1"
    assert stale.num_actions == 2  # marked, not dropped
    assert taken.num_valid == 3
    assert buffer.num_stale == 1


def test_in_step_every_older_token_is_stale():
    buffer = Buffer()
    buffer.put(group(attempt(0, [0])))
    (taken,) = buffer.take(1, version=1)
    assert taken.num_valid == 0
    assert buffer.num_stale == 1


def test_a_failed_attempt_keeps_its_own_reason():
    failure = Failure(FailureKind.GRADER, "no verdict", 0)
    buffer = Buffer()
    buffer.put(group(attempt(0, [0], failure=failure)))
    (taken,) = buffer.take(1, version=9)
    assert taken.trajectories[0].failure is failure
    assert buffer.num_stale == 0


def test_tokens_of_the_future_are_an_error():
    buffer = Buffer(max_staleness=3)
    buffer.put(group(attempt(0, [5])))
    with pytest.raises(TrajectoryError, match="version 5, and the learner is at 4"):
        buffer.take(1, version=4)


def test_a_group_holds_each_attempt_at_its_task_once():
    with pytest.raises(TrajectoryError, match="'other'"):
        group(attempt(0, [0]), attempt(1, [0], task="other"))
    with pytest.raises(TrajectoryError, match="twice"):
        group(attempt(0, [0]), attempt(0, [0]))


def test_a_negative_bound_is_refused():
    with pytest.raises(ConfigError, match="max_staleness"):
        Buffer(max_staleness=-1)
