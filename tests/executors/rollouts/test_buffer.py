import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.rollouts.buffer import Buffer, Finished, Group
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.pacing import Pace


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


def finished(serial, *trajectories, task="t", began=0):
    return Finished(Draw(serial, Task(id=task)), group(*trajectories, task=task), began)


def filled(*groups, max_staleness=0):
    buffer = Buffer(Pace(batch_groups=2, max_staleness=max_staleness))
    for one in groups:
        buffer.put(one)
    return buffer


def serials(taken):
    return [one.draw.serial for one in taken]


def test_the_oldest_leave_first_and_in_the_order_of_their_draws():
    buffer = filled(
        finished(4, attempt(0, [1])), finished(3, attempt(0, [0])), finished(2, attempt(0, [0])), max_staleness=1
    )
    assert serials(buffer.take(2, version=1)) == [2, 3]
    assert serials(buffer.finished) == [4]
    assert serials(buffer.take(2, version=1)) == [4]
    assert buffer.take(2, version=1) == []


def test_a_batch_waits_until_it_is_full():
    buffer = filled(finished(0, attempt(0, [0])))
    assert buffer.take(2, version=0, running=[0]) is None
    assert len(buffer) == 1
    buffer.put(finished(1, attempt(0, [0])))
    assert serials(buffer.take(2, version=0, running=[])) == [0, 1]


def test_a_batch_waits_for_a_group_that_would_expire():
    """Two versions are allowed, two groups a batch: the groups of version 0 must all be taken by version 2."""
    buffer = filled(finished(3, attempt(0, [1])), finished(4, attempt(0, [1])), max_staleness=2)
    assert buffer.take(2, version=2, running=[2]) is None  # began at version 0: this batch is its last
    assert serials(buffer.take(2, version=2, running=[3])) == [3, 4]  # began at version 1: the next may take it


def test_age_is_that_of_the_oldest_token_when_taken():
    attempts = attempt(0, [4, 4]), attempt(1, [3, 4]), attempt(2, [2, 4]), attempt(3, [])
    buffer = filled(finished(0, *attempts), max_staleness=1)
    (taken,) = buffer.take(1, version=4)
    assert [t.is_valid for t in taken.group.trajectories] == [True, True, False, True]
    stale = taken.group.trajectories[2]
    assert stale.failure.kind is FailureKind.STALE
    assert stale.failure.message == "sampled at version 2, 2 versions old; max_staleness is 1"
    assert stale.num_actions == 2  # marked, not dropped
    assert taken.group.num_valid == 3
    assert buffer.num_stale == 1


def test_in_step_every_older_token_is_stale():
    buffer = filled(finished(0, attempt(0, [0])))
    (taken,) = buffer.take(1, version=1)
    assert taken.group.num_valid == 0
    assert buffer.num_stale == 1


def test_a_group_expires_when_its_last_fresh_attempt_is_too_old():
    buffer = filled(
        finished(0, attempt(0, [0]), attempt(1, [2])), finished(1, attempt(0, [1]), attempt(1, [1])), max_staleness=1
    )
    assert buffer.expire(2) == []
    assert [draw.serial for draw in buffer.expire(3)] == [1]
    assert [draw.serial for draw in buffer.expire(4)] == [0]
    assert (len(buffer), buffer.num_stale) == (0, 4)


def test_a_failed_attempt_keeps_its_own_reason():
    failure = Failure(FailureKind.GRADER, "no verdict", 0)
    buffer = filled(finished(0, attempt(0, [0], failure=failure), attempt(1, [9])))
    (taken,) = buffer.take(1, version=9)
    assert taken.group.trajectories[0].failure is failure
    assert buffer.num_stale == 0


def test_tokens_of_the_future_are_an_error():
    buffer = filled(finished(0, attempt(0, [5])), max_staleness=3)
    with pytest.raises(TrajectoryError, match="version 5, and the learner is at 4"):
        buffer.take(1, version=4)


def test_a_group_holds_each_attempt_at_its_task_once():
    with pytest.raises(TrajectoryError, match="'other'"):
        group(attempt(0, [0]), attempt(1, [0], task="other"))
    with pytest.raises(TrajectoryError, match="twice"):
        group(attempt(0, [0]), attempt(0, [0]))
