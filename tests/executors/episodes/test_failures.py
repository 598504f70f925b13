import asyncio
import sys

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.envs.base import AsyncEnv, Env
from turngym.errors import EngineDeadError, EngineError, GraderError, RewardError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.trajectory import EndReason, FailureKind

SAMPLING = Sampling(max_tokens=4)


def env(*, reset=("go", {}), step=(".", 1.0, True, False, {})):
    """An environment class that returns, raises or calls what it is given."""

    def act(what):
        if isinstance(what, BaseException):
            raise what
        return what() if callable(what) else what

    class Given(Env):
        num_closed = 0

        def reset(self, *, seed=None, options=None):
            return act(reset)

        def step(self, action):
            return act(step)

        def close(self):
            type(self).num_closed += 1

    return Given


def engine(script=None):
    return ScriptedEngine(script or (lambda request: [120, 121]))


@pytest.mark.parametrize(
    ("factory", "kind", "turn", "words"),
    [
        (env(reset=ValueError("no such file")), FailureKind.ENV, -1, "ValueError: no such file"),
        (env(reset=(7, {})), FailureKind.ENV, -1, "observation of type int"),
        (env(reset="go"), FailureKind.ENV, -1, "returned str; wanted (observation, info)"),
        (env(reset=([], {})), FailureKind.ENV, -1, "empty observation"),
        (env(reset=("go", None)), FailureKind.ENV, -1, "info of type NoneType"),
        (env(reset=([{"role": "king", "content": ""}], {})), FailureKind.ENV, -1, "'king'"),
        (env(step=(".", 1.0, True, {})), FailureKind.ENV, 0, "a tuple of 4"),
        (env(step=(".", None, True, False, {})), FailureKind.REWARD, 0, "reward is None"),
        (env(step=(".", float("nan"), True, False, {})), FailureKind.REWARD, 0, "reward is nan"),
        (env(step=(".", "1.0", True, False, {})), FailureKind.REWARD, 0, "'1.0'"),
        (env(step=(".", np.ones(2), True, False, {})), FailureKind.REWARD, 0, "finite number"),
        (env(step=(".", 1.0, 1, False, {})), FailureKind.ENV, 0, "terminated is 1 of type int"),
        (env(step=(".", 1.0, True, None, {})), FailureKind.ENV, 0, "truncated is None"),
        (env(step=(b"x", 1.0, True, False, {})), FailureKind.ENV, 0, "observation of type bytes"),
        (env(step=(".", 1.0, True, False, {"score": np.inf})), FailureKind.REWARD, 0, "score is inf"),
        (env(step=(".", 1.0, True, False, {"extra_logs": {"x": None}})), FailureKind.REWARD, 0, "extra_logs['x']"),
        (env(step=(".", 1.0, True, False, {"extra_logs": [1]})), FailureKind.ENV, 0, "extra_logs of type list"),
        (env(step=RewardError("bad")), FailureKind.REWARD, 0, "RewardError: bad"),
        (env(step=GraderError("no verdict")), FailureKind.GRADER, 0, "no verdict"),
        (env(step=TimeoutError("upstream")), FailureKind.ENV_TIMEOUT, 0, "upstream"),
        (env(step=EngineDeadError("the judge")), FailureKind.ENV, 0, "the judge"),
        (env(step=StopIteration()), FailureKind.ENV, 0, "StopIteration"),
        (env(step=lambda: sys.exit(3)), FailureKind.ENV, 0, "SystemExit(3)"),
        (env(step=asyncio.CancelledError()), FailureKind.ENV, 0, "CancelledError"),
        (env(reset=("unrenderable", {})), FailureKind.TEMPLATE, -1, "no template"),
        (env(step=("unrenderable", 1.0, False, False, {})), FailureKind.TEMPLATE, 0, "no template"),
    ],
)
def test_what_an_environment_does_wrong_is_typed(play, factory, kind, turn, words):
    factory.num_closed = 0
    trajectory = asyncio.run(play(factory, engine(), SAMPLING))
    assert trajectory.end_reason is EndReason.FAILED
    assert (trajectory.failure.kind, trajectory.failure.turn) == (kind, turn)
    assert words in trajectory.failure.message
    assert not trajectory.is_valid
    assert trajectory.num_actions == (2 if turn == 0 else 0)  # what was gathered by then stays
    assert factory.num_closed == 1


def test_rewards_whose_sum_is_not_finite_are_typed(play):
    factory = env(step=("more", 1e308, False, False, {}))
    trajectory = asyncio.run(play(factory, engine(), SAMPLING))
    assert (trajectory.failure.kind, trajectory.failure.turn) == (FailureKind.REWARD, 1)
    assert "sum to inf" in trajectory.failure.message
    assert trajectory.rewards_per_turn.tolist() == [1e308]


def test_a_failure_names_the_line_it_came_from(play):
    def fails():
        assert False  # noqa: B011, PT015

    trajectory = asyncio.run(play(env(step=fails), engine(), SAMPLING))
    assert "AssertionError" in trajectory.failure.message
    assert "test_failures.py" in trajectory.failure.message
    assert "in fails" in trajectory.failure.message


def test_an_environment_that_cannot_be_made_is_typed(play):
    def factory():
        raise OSError("no licence")

    trajectory = asyncio.run(play(factory, engine(), SAMPLING))
    assert (trajectory.failure.kind, trajectory.failure.turn) == (FailureKind.ENV, -1)
    assert "no licence" in trajectory.failure.message


@pytest.mark.parametrize("error", [SystemExit(2), asyncio.CancelledError(), KeyError("x")])
def test_an_async_environment_that_raises_is_typed(play, error):
    class Raises(AsyncEnv):
        num_closed = 0

        async def reset(self, *, seed=None, options=None):
            return "go", {}

        async def step(self, action):
            raise error

        async def close(self):
            Raises.num_closed += 1

    trajectory = asyncio.run(play(Raises, engine(), SAMPLING))
    assert trajectory.failure.kind is FailureKind.ENV
    assert type(error).__name__ in trajectory.failure.message
    assert Raises.num_closed == 1


def raising(error):
    def script(request):
        raise error

    return script


@pytest.mark.parametrize(
    ("script", "kind", "words", "num_actions"),
    [
        (raising(EngineError("no room")), FailureKind.ENGINE, "no room", 0),
        (raising(EngineDeadError("out of memory")), FailureKind.ENGINE_DEAD, "out of memory", 0),
        (raising(OSError("pipe")), FailureKind.ENGINE, "OSError: pipe", 0),
        (raising(asyncio.CancelledError()), FailureKind.ENGINE, "by itself", 0),
        (raising(TimeoutError("its own")), FailureKind.ENGINE_TIMEOUT, "its own", 0),
        (lambda r: Reply([1, 2], None), FailureKind.ENGINE, "without logprobs", 0),
        (lambda r: Reply([1, 2], [-1.0]), FailureKind.ENGINE, "one logprob", 0),
        (lambda r: Reply([1, 2], [-1.0, np.nan]), FailureKind.ENGINE, "not finite", 0),
        (lambda r: Reply([1, 2], [-1.0, -1.0], stop_reason=StopReason.ABORT), FailureKind.ENGINE, "aborted turn 0", 2),
    ],
)
def test_what_an_engine_does_wrong_is_typed(play, script, kind, words, num_actions):
    factory = env()
    trajectory = asyncio.run(play(factory, engine(script), SAMPLING))
    assert trajectory.failure.kind is kind
    assert trajectory.failure.turn == 0
    assert words in trajectory.failure.message
    assert trajectory.num_actions == num_actions
    assert len(trajectory.rewards_per_turn) == 0
    assert factory.num_closed == 1


def test_a_completion_beyond_max_tokens_is_an_engine_failure(play):
    class Overruns(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, images=None, request=""):
            ones = np.ones(5, np.int32)
            return Completion(ones, -np.ones(5, np.float32), ones, StopReason.LENGTH)

    trajectory = asyncio.run(play(env(), Overruns(), SAMPLING))
    assert trajectory.failure.kind is FailureKind.ENGINE
    assert "5 tokens came" in trajectory.failure.message


def test_a_completion_that_takes_too_long_is_an_engine_timeout(play):
    slow = ScriptedEngine(token_latency_s=60.0)
    trajectory = asyncio.run(play(env(), slow, SAMPLING, generate_timeout_s=0.05))
    assert trajectory.failure.kind is FailureKind.ENGINE_TIMEOUT
    assert "generate_timeout_s=0.05" in trajectory.failure.message
    assert slow.num_running == 0


def test_a_close_that_fails_spoils_nothing_and_is_counted(play, pool, caplog):
    class CannotClose(env()):
        def close(self):
            raise OSError("still in use")

    trajectory = asyncio.run(play(CannotClose, engine(), SAMPLING))
    assert trajectory.is_valid
    assert pool.num_close_failures == 1
    assert "still in use" in caplog.text
