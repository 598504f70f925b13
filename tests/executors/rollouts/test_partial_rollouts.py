"""R43: without partial rollouts no attempt mixes versions; with them each token has its version and its own logprob."""

import asyncio

import numpy as np
import pytest

from turngym.agents.base import Sampling, StopReason
from turngym.envs.task import Task
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.retry import retrying
from turngym.executors.episodes.trajectory import FailureKind
from turngym.learner.batch import assemble
from turngym.learner.steps.attempts import rollout_metrics, staleness_metrics

SAMPLING = Sampling(max_tokens=12)
VERSIONS = [2, 2, 4, 4, *[6] * 8]
LOGPROBS = [-0.5, -1.5, -0.25, -2.0, *[-1.0] * 8]
LETTERS = list(b"abcdefghijkl")


async def test_what_was_aborted_is_begun_again_from_the_prompt_and_counted(multi_turn, echo, task):
    """The report's halves: 2 tokens of version 2, 2 of version 4, both aborted; then an answer of 12 of version 6."""

    def half(version: int) -> Reply:
        return Reply(LETTERS[:2], LOGPROBS[:2], [version] * 2, stop_reason=StopReason.ABORT)

    engine = ScriptedEngine([half(2), half(4), Reply(LETTERS, [-1.0] * 12, [6] * 12, stop_reason=StopReason.LENGTH)])
    trajectory = await retrying(multi_turn(lambda: echo(turns=1)), task, 0, engine, SAMPLING, backoff_s=0.0)
    assert [bytes(request.prompt_ids.tolist()) for request in engine.requests] == [b"u:go|>"] * 3
    (sequence,) = trajectory.sequences
    assert sequence.token_ids[sequence.is_action].tolist() == LETTERS
    assert sequence.versions[sequence.is_action].tolist() == [6] * 12
    assert [failure.kind for failure in trajectory.earlier_failures] == [FailureKind.ENGINE] * 2
    assert "the engine aborted turn 0 after 2 tokens" in trajectory.earlier_failures[0].message
    metrics = rollout_metrics([trajectory], 1.0)
    assert (metrics["attempts/retries"], metrics["rollout/tokens"]) == (2, 12)


async def test_where_it_is_tried_once_the_half_is_a_failure_and_no_sample(multi_turn, echo, task):
    engine = ScriptedEngine([Reply(LETTERS[:2], LOGPROBS[:2], [2, 2], stop_reason=StopReason.ABORT)])
    trajectory = await retrying(multi_turn(lambda: echo(turns=1)), task, 0, engine, SAMPLING, max_retries=0)
    assert not trajectory.is_valid
    assert rollout_metrics([trajectory], 1.0)["failures/engine"] == 1
    batch = assemble([trajectory], np.array([trajectory.is_valid]))
    assert batch.num_actions == 0


async def test_each_token_reaches_the_learner_with_its_version_and_logprob(multi_turn, echo, task):
    """The same tokens as one completion over two updates."""
    engine = ScriptedEngine([Reply(LETTERS, LOGPROBS, VERSIONS)])
    trajectory = await multi_turn(lambda: echo(turns=1)).run(task, 0, engine, SAMPLING)
    batch = assemble([trajectory], np.array([True]))
    assert batch.versions[batch.is_action].tolist() == VERSIONS
    assert batch.rollout_logprobs[batch.is_action].tolist() == LOGPROBS
    metrics = staleness_metrics([trajectory], 6, {}, 0)
    assert metrics == {"rollouts/ready": 0, "staleness/mean": 4, "staleness/max": 4, "staleness/spanning": 1}


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_an_update_while_four_long_requests_run(multi_turn, echo, mode):
    """Drained, they are of one version each, and who waited is of the next; else each has both, the older first."""
    engine = ScriptedEngine(lambda request: LETTERS, token_latency_s=0.005)
    executor = multi_turn(lambda: echo(turns=2))
    async with asyncio.timeout(60):
        runs = [asyncio.create_task(executor.run(Task(id=str(n), prompt="go"), 0, engine, SAMPLING)) for n in range(4)]
        while engine.num_running < 4:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        await engine.pause(mode)
        await engine.begin_update()
        await engine.finish_update(1)
        await engine.resume()
        trajectories = await asyncio.gather(*runs)
    for trajectory in trajectories:
        (sequence,) = trajectory.sequences
        turns = [sequence.versions[sequence.is_action & (sequence.turn == turn)].tolist() for turn in (0, 1)]
        assert [len(versions) for versions in turns] == [12, 12]
        assert sorted(turns[0]) == turns[0]
        assert turns[1] == [1] * 12
        assert set(turns[0]) == ({0} if mode is UpdateMode.DRAIN else {0, 1})
    spanning = staleness_metrics(trajectories, 1, {}, 0)["staleness/spanning"]
    assert spanning == 1  # the turns of an episode may be of several versions in every mode; a completion may not
