"""Batches: what is taken from trajectories, and what survives selecting and joining."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.learner.batch import assemble, concatenate


def completion(ids, logprob, version):
    count = len(ids)
    return Completion(
        np.array(ids, np.int32), np.full(count, logprob, np.float32), np.full(count, version, np.int32), StopReason.STOP
    )


def two_turns():
    builder = SequenceBuilder()
    builder.add_context([1, 2], turn=-1)
    builder.add_completion(completion([3, 4], -0.5, version=7), Sampling(8, temperature=0.6), turn=0)
    builder.add_context([5], turn=0)
    builder.add_completion(completion([6], -0.25, version=8), Sampling(8, temperature=0.0), turn=1)
    return builder.build()


def one_turn(ids=(9,), turn=2):
    builder = SequenceBuilder()
    builder.add_context([8], turn=1)
    if ids:
        builder.add_completion(completion(ids, -1.0, version=8), Sampling(8), turn=turn)
    return builder.build()


def trajectory(*sequences, failure=None):
    return Trajectory(
        task=Task("t"),
        attempt=0,
        sequences=sequences,
        messages=(),
        rewards_per_turn=np.array([1.0]),
        turn_ends=(TurnEnd.STOP,),
        end_reason=EndReason.FAILED if failure else EndReason.TERMINATED,
        failure=failure,
    )


@pytest.fixture
def batch():
    failed = trajectory(one_turn(), failure=Failure(FailureKind.ENV, "broke", 0))
    return assemble([trajectory(two_turns(), one_turn()), failed, trajectory(one_turn((10, 11)), one_turn(()))])


def test_assemble_lays_valid_sequences_with_actions_end_to_end(batch):
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 8, 9, 8, 10, 11]
    assert batch.is_action.tolist() == [False, False, True, True, False, True, False, True, False, True, True]
    assert batch.starts.tolist() == [0, 6, 8, 11]
    assert batch.attempts.tolist() == [0, 0, 2]
    assert batch.turns.tolist() == [-1, -1, 0, 0, 0, 1, 1, 2, 1, 2, 2]
    assert batch.versions.tolist() == [-1, -1, 7, 7, -1, 8, -1, 8, -1, 8, 8]
    assert batch.rollout_logprobs[batch.is_action].tolist() == [-0.5, -0.5, -0.25, -1, -1, -1]
    assert np.isnan(batch.rollout_logprobs[~batch.is_action]).all()
    assert batch.temperatures.tolist() == pytest.approx([1, 1, 0.6, 0.6, 1, 1, 1, 1, 1, 1, 1])  # greedy counts as 1


def test_actions_of_shaped_turns_are_marked(batch):
    assert not batch.is_shaped.any()
    first, second = two_turns(), one_turn()
    shaped = {1: replace(first.samplings[1], top_p=0.9)}
    marked = assemble([trajectory(replace(first, samplings={**first.samplings, **shaped}), second)])
    assert np.flatnonzero(marked.is_shaped).tolist() == [5]
    assert np.flatnonzero(concatenate([marked.select([1]), marked.select([0])]).is_shaped).tolist() == [7]


def test_counts(batch):
    assert (batch.num_tokens, batch.num_sequences, batch.num_actions, batch.num_attempts) == (11, 3, 6, 2)
    assert batch.lengths.tolist() == [6, 2, 3]
    assert batch.sequence_of_token.tolist() == [0] * 6 + [1] * 2 + [2] * 3
    assert batch.attempt_of_token.tolist() == [0] * 8 + [2] * 3


def test_select_and_concatenate_undo_each_other(batch):
    batch = batch.with_advantages(np.arange(6)).with_old_logprobs(np.arange(11)).with_ref_logprobs(-np.arange(11))
    parts = [batch.select([0]), batch.select([]), batch.select([1, 2])]
    joined = concatenate(parts)
    for name, array in vars(batch).items():
        np.testing.assert_array_equal(getattr(joined, name), array, err_msg=name)

    last_first = batch.select([2, 0])
    assert last_first.token_ids.tolist() == [8, 10, 11, 1, 2, 3, 4, 5, 6]
    assert last_first.advantages.tolist() == [0, 4, 5, 0, 0, 0, 1, 0, 2]
    assert last_first.old_logprobs.tolist() == [8, 9, 10, 0, 1, 2, 3, 4, 5]
    assert last_first.starts.tolist() == [0, 3, 9]
    assert last_first.attempts.tolist() == [2, 0]


def test_empty_batches(batch):
    for empty in (assemble([]), batch.select([])):
        assert (empty.num_tokens, empty.num_sequences, empty.num_actions, empty.num_attempts) == (0, 0, 0, 0)
        assert empty.starts.tolist() == [0]


def test_shipping_costs_little_more_than_the_arrays(batch):
    big = concatenate([batch] * 1000)
    shipped = pickle.dumps(big)
    assert len(shipped) < 1.2 * sum(array.nbytes for array in vars(big).values() if isinstance(array, np.ndarray))
    assert pickle.loads(shipped).token_ids.tolist() == big.token_ids.tolist()


def test_wrong_lengths_are_named(batch):
    with pytest.raises(TrajectoryError, match="advantages for 6 action tokens wanted"):
        batch.with_advantages([1.0])
    with pytest.raises(TrajectoryError, match=r"old_logprobs.: 3"):
        batch.with_old_logprobs([0, 0, 0])
    with pytest.raises(TrajectoryError, match="old_logprobs is known for some"):
        concatenate([batch, batch.with_old_logprobs(np.zeros(11))])
    with pytest.raises(TrajectoryError, match="got none"):
        concatenate([])


def test_an_action_that_nothing_predicts_is_refused():
    builder = SequenceBuilder()
    builder.add_completion(completion([3], -0.5, version=0), Sampling(8), turn=0)
    with pytest.raises(TrajectoryError, match="first token of a sequence is an action"):
        assemble([trajectory(builder.build())])
