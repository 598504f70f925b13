import asyncio
import subprocess
import sys

import numpy as np
import pytest

from turngym.agents.base import Sampling, StopReason
from turngym.envs.base import Env
from turngym.envs.task import Task
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.retry import pause_s, retrying, stable_seed
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory

SAMPLING = Sampling(max_tokens=4)


def test_a_retried_episode_starts_afresh(multi_turn, echo, task):
    """R45: aborted after two turns and begun again, nothing of the first try is left."""
    calls = []
    aborted = Reply([66], [-1.0], stop_reason=StopReason.ABORT)
    engine = ScriptedEngine([[65], [65], aborted, [67], [68], [69]])
    executor = multi_turn(lambda: echo(turns=3, calls=calls))
    trajectory = asyncio.run(retrying(executor, task, 5, engine, SAMPLING, backoff_s=0.0))
    assert trajectory.end_reason is EndReason.TERMINATED
    assert trajectory.attempt == 5
    (sequence,) = trajectory.sequences
    assert sequence.token_ids[sequence.is_action].tolist() == [67, 68, 69]
    assert bytes(sequence.token_ids.tolist()) == b"u:go|>Cu:.|>Du:.|>Eu:.|"
    assert len(trajectory.rewards_per_turn) == trajectory.num_turns == 3
    assert [failure.kind for failure in trajectory.earlier_failures] == [FailureKind.ENGINE]
    assert calls == ["reset", "step A", "step A", "close", "reset", "step C", "step D", "step E", "close"]


@pytest.mark.slow
def test_a_hundred_episodes_with_missing_logprobs_and_aborts(multi_turn, echo):
    """R45: whatever the engine leaves out, arrays have one length and attempts keep their names."""
    rng = np.random.default_rng(0)

    def script(request):
        fault = rng.integers(8)
        if fault == 0:
            return Reply([65, 66], None)
        if fault == 1:
            return Reply([65], [-1.0], stop_reason=StopReason.ABORT)
        return Reply([67, 68], [-1.0, -2.0])

    executor = multi_turn(lambda: echo(turns=3))

    async def main():
        engine = ScriptedEngine(script)
        runs = (
            retrying(executor, Task(id=str(i)), i % 8, engine, SAMPLING, max_retries=1, backoff_s=0.0)
            for i in range(100)
        )
        return await asyncio.gather(*runs)

    trajectories = asyncio.run(main())
    assert [(t.task.id, t.attempt) for t in trajectories] == [(str(i), i % 8) for i in range(100)]
    for trajectory in trajectories:
        if trajectory.is_valid:
            assert trajectory.num_actions == 6
            assert trajectory.sequences[0].logprobs[trajectory.sequences[0].is_action].tolist() == [-1.0, -2.0] * 3
        else:
            assert trajectory.failure.kind is FailureKind.ENGINE
            assert len(trajectory.earlier_failures) == 1
    assert {t.is_valid for t in trajectories} == {True, False}
    assert any(t.is_valid and t.earlier_failures for t in trajectories)


def test_retries_are_bounded(multi_turn, task):
    class Breaks(Env):
        def reset(self, *, seed=None, options=None):
            raise OSError("down")

    engine = ScriptedEngine()
    trajectory = asyncio.run(retrying(multi_turn(Breaks), task, 0, engine, SAMPLING, max_retries=3, backoff_s=0.0))
    assert trajectory.failure.kind is FailureKind.ENV
    assert len(trajectory.earlier_failures) == 3


@pytest.mark.parametrize(
    ("prompt", "script", "kind"),
    [
        ("x" * 50, lambda request: [65], FailureKind.PROMPT_TOO_LONG),
        ("unrenderable", lambda request: [65], FailureKind.TEMPLATE),
        ("go", "dead", FailureKind.ENGINE_DEAD),
    ],
)
def test_what_cannot_pass_is_not_tried_again(multi_turn, echo, prompt, script, kind):
    def dead(request):
        raise EngineDeadError("gone")

    engine = ScriptedEngine(dead if script == "dead" else script, max_context=40)
    calls = []
    executor = multi_turn(lambda: echo(calls=calls))
    trajectory = asyncio.run(retrying(executor, Task(id="t", prompt=prompt), 0, engine, SAMPLING))
    assert trajectory.failure.kind is kind
    assert trajectory.earlier_failures == ()
    assert calls == ["reset", "close"]


def test_one_attempt_in_eight_fails_and_exactly_these(multi_turn):
    """R33's input: groups that are not full, told by type and by attempt."""

    class BreaksOnce(Env):
        def reset(self, *, seed=None, options=None):
            return "go", {}

        def step(self, action):
            if str(action) == "\x03":
                raise RuntimeError("attempt 3 breaks")
            return "", float(ord(action[0])), True, False, {}

    executor = multi_turn(BreaksOnce)

    async def main():
        engine = ScriptedEngine(lambda request: [int(request.name.split("/")[1])])
        runs = (executor.run(Task(id=str(i // 8)), i % 8, engine, SAMPLING) for i in range(64))
        return await asyncio.gather(*runs)

    trajectories = asyncio.run(main())
    failed = [(t.task.id, t.attempt) for t in trajectories if not t.is_valid]
    assert failed == [(str(group), 3) for group in range(8)]
    assert {t.failure.kind for t in trajectories if not t.is_valid} == {FailureKind.ENV}
    assert all(t.reward == t.attempt for t in trajectories if t.is_valid)


def test_a_request_that_fails_once_is_tried_again(multi_turn, echo, task):
    def script(request):
        if request.index == 0:
            raise EngineError("queue full")
        return [65]

    engine = ScriptedEngine(script)
    trajectory = asyncio.run(retrying(multi_turn(lambda: echo(turns=1)), task, 0, engine, SAMPLING))
    assert trajectory.is_valid
    assert "queue full" in trajectory.earlier_failures[0].message


@pytest.mark.parametrize("kind", list(FailureKind))
def test_each_kind_of_failure_is_retried_or_not(task, monkeypatch, kind):
    """FAULTS 1, 23, 24, 27: what may pass is tried again, after a pause that grows."""
    once = {
        "engine_dead",
        "template",
        "prompt_too_long",
        "env_unavailable",
        "fork_refused",
        "no_turn",
        "cancelled",
        "lost",
        "stale",
    }
    pauses = []
    runs = []

    async def sleep(seconds):
        pauses.append(seconds)

    class Fails:
        async def run(self, task, attempt, generator, sampling, seed_for=None):
            runs.append(attempt)
            failure = Failure(kind, f"try {len(runs)}", 0)
            return Trajectory(task, attempt, (), (), np.zeros(0), (), EndReason.FAILED, failure)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    trajectory = asyncio.run(retrying(Fails(), task, 7, ScriptedEngine(), SAMPLING, max_retries=4, backoff_s=2.0))
    assert trajectory.failure.kind is kind
    if kind.value in once:
        assert (runs, pauses, trajectory.earlier_failures) == ([7], [], ())
    else:
        assert runs == [7] * 5
        assert [failure.message for failure in trajectory.earlier_failures] == [f"try {n}" for n in (1, 2, 3, 4)]
        assert all(0 <= pause <= bound for pause, bound in zip(pauses, (2, 4, 8, 16), strict=True))
        assert len(set(pauses)) == 4


def test_pauses_are_bounded_and_drawn():
    drawn = [pause_s(20, 0.5) for _ in range(200)]
    assert max(drawn) <= 30
    assert max(drawn) > 20
    assert min(drawn) < 10
    assert pause_s(3, 0.0) == 0.0


@pytest.mark.slow
async def test_an_environment_that_raises_only_sometimes_costs_no_attempt(multi_turn):
    """A third of all steps fail at random: with retries every attempt ends valid, its first failures told."""
    rng = np.random.default_rng(0)

    class Moody(Env):
        def reset(self, *, seed=None, options=None):
            return "go", {}

        def step(self, action):
            if rng.random() < 1 / 3:
                raise ConnectionError("reset by peer")
            return "", 1.0, True, False, {}

    executor = multi_turn(Moody)
    engine = ScriptedEngine(lambda request: [65])
    runs = (
        retrying(executor, Task(id=str(i)), 0, engine, SAMPLING, max_retries=12, backoff_s=0.001) for i in range(60)
    )
    trajectories = await asyncio.gather(*runs)
    assert all(t.is_valid for t in trajectories)
    assert 10 < sum(len(t.earlier_failures) for t in trajectories) < 60
    assert executor.env_pool.stats().families["Moody"].num_opened == 0


@pytest.mark.slow
def test_seeds_are_the_same_in_every_process():
    program = "from turngym.executors import stable_seed as s; print(s('gsm8k/é', 3, 1), s('t', 0, 0, 7))"
    here = f"{stable_seed('gsm8k/é', 3, 1)} {stable_seed('t', 0, 0, 7)}\n"
    for hash_seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": hash_seed, "PATH": "", "PYTHONUTF8": "1"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.stdout == here, done.stderr


def test_seeds_differ_by_task_attempt_turn_and_run():
    seeds = {stable_seed(t, a, k, r) for t in ("a", "b") for a in range(8) for k in range(8) for r in range(2)}
    assert len(seeds) == 256
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stable_seed("a\x001", 2, 3) != stable_seed("a", 1, 2)


def test_full_determinism_repeats_every_token(multi_turn, echo):
    executor = multi_turn(lambda: echo(turns=2))

    def actions(seed_for):
        async def main():
            engine = ScriptedEngine()
            runs = (executor.run(Task(id="t"), a, engine, Sampling(max_tokens=8), seed_for) for a in range(4))
            return await asyncio.gather(*runs)

        return [t.sequences[0].token_ids[t.sequences[0].is_action].tolist() for t in asyncio.run(main())]

    first, again = actions(stable_seed), actions(stable_seed)
    assert first == again
    assert len({tuple(tokens) for tokens in first}) == 4  # attempts differ
