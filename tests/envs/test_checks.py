"""The conformance checks find each planted fault, and nothing in sound environments."""

import asyncio
import itertools
import random
import threading
import time

import pytest

from turngym import AsyncEnv, Env, Task
from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory
from turngym.envs.spaces import TextSpace
from turngym.errors import ConfigError


class Good(Env):
    """Counts to three."""

    def reset(self, *, seed=None, options=None):
        self._draw(seed, options)
        self.turn = 0
        self.secret = int(self.np_random.integers(1000))
        return f"reset {self.secret}", {}

    def step(self, action):
        self.turn += 1
        return f"turn {self.turn}", 0.5, self.turn == 3, False, {"score": 0.5, "extra_logs": {"x": 1}}


class GoodAsync(AsyncEnv):
    turn = 0

    async def reset(self, *, seed=None, options=None):
        await asyncio.sleep(0)
        self.turn = 0
        return [{"role": "user", "content": options["task"].id}], {}

    async def step(self, action):
        self.turn += 1
        return [{"role": "tool", "content": "ok"}], 1, False, self.turn == 3, {}


def returning(**changes):
    """An environment whose step returns something else."""

    class Bad(Good):
        def step(self, action):
            names = ("observation", "reward", "terminated", "truncated", "info")
            result = dict(zip(names, super().step(action), strict=True))
            result["terminated"] = True
            return tuple({**result, **changes}.values())

    return Bad


class ResetReturnsText(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class ResetReturnsNumber(Good):
    def reset(self, *, seed=None, options=None):
        return 3, {}


class ResetReturnsNoInfo(Good):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], None


class ResetRaises(Good):
    def reset(self, *, seed=None, options=None):
        raise ZeroDivisionError("no")


class ResetTakesNoOptions(Good):
    def reset(self, *, seed=None):
        return super().reset(seed=seed)


class StepReturnsFour(Good):
    def step(self, action):
        return super().step(action)[:4]


class StepRaisesOnEmptyText(Good):
    def step(self, action):
        _ = action[0]
        return super().step(action)


class StepHangs(Good):
    def step(self, action):
        time.sleep(5)
        return super().step(action)


class OutsideItsSpace(Good):
    class Short(TextSpace):
        def contains(self, x):
            return isinstance(x, str) and len(x) < 3

    observation_space = Short()


class NeverEnds(Good):
    def step(self, action):
        return "on and on", 0.0, False, False, {}


class IgnoresTheSeed(Good):
    def reset(self, *, seed=None, options=None):
        return f"{super().reset(seed=seed, options=options)[0]} {random.random()}", {}


class StepsAtRandom(Good):
    def step(self, action):
        return f"{random.random()}", *super().step(action)[1:]


class IgnoresTheTask(Good):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return "always the same", {}


class LeaksState(Good):
    total = 0

    def step(self, action):
        self.total += 1
        return f"{self.total} in all", *super().step(action)[1:]


class CannotBeClosedTwice(Good):
    lock = None

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def close(self):
        self.lock.release()


class CannotBeMade(Good):
    def __init__(self) -> None:
        raise ZeroDivisionError("no")


class CoroutineInEnv(Good):
    async def step(self, action):
        return super().step(action)


class NoCoroutineInAsyncEnv(GoodAsync):
    def reset(self, *, seed=None, options=None):
        return "x", {}


class Blocks(GoodAsync):
    async def step(self, action):
        time.sleep(0.0 if self.turn else 1.0)
        return await super().step(action)


class AsyncStepHangs(GoodAsync):
    async def step(self, action):
        await asyncio.sleep(600)


def with_tasks(make):
    """An environment whose tasks are what `make(split, seed)` returns."""

    class Bad(Good):
        def tasks(self, split, seed):
            return make(split, seed)

    return Bad


COUNTER = itertools.count()


@pytest.mark.parametrize(
    ("env_class", "check", "severity", "what"),
    [
        (ResetReturnsText, "reset_result", "error", "reset returned str"),
        (ResetReturnsNumber, "observation", "error", "observation of type int"),
        (ResetReturnsNoInfo, "info", "error", "reset returned info of type NoneType"),
        (ResetRaises, "raises", "error", "reset raised ZeroDivisionError: no"),
        (ResetTakesNoOptions, "awaiting", "error", "reset does not take options"),
        (StepReturnsFour, "step_result", "error", "step returned 4 values"),
        (StepRaisesOnEmptyText, "raises", "error", r"step (turn 0) raised IndexError"),
        (StepHangs, "raises", "error", "step of StepHangs took longer than its deadline of 0.4 s"),
        (AsyncStepHangs, "raises", "error", "step of AsyncStepHangs took longer"),
        (OutsideItsSpace, "space", "error", "does not contain"),
        (NeverEnds, "termination", "error", "no episode end within 8 turns"),
        (IgnoresTheSeed, "seeding", "error", "the same task begins with different observations"),
        (StepsAtRandom, "seeding", "warning", "different steps"),
        (IgnoresTheTask, "tasks_differ", "warning", "4 different tasks go the same way"),
        (LeaksState, "state", "error", "reset leaves state behind"),
        (CannotBeClosedTwice, "close", "error", "close raised RuntimeError the second time"),
        (CannotBeMade, "constructor", "error", "making it raised ZeroDivisionError"),
        (CoroutineInEnv, "awaiting", "error", "step is a coroutine, but the class is a turngym.Env"),
        (NoCoroutineInAsyncEnv, "awaiting", "error", "reset is no coroutine, but the class is a turngym.AsyncEnv"),
        (Blocks, "blocking", "error", "the event loop stood still"),
        (returning(observation=None), "observation", "error", "observation of type NoneType"),
        (returning(observation=[{"content": "x"}]), "observation", "error", "as a message"),
        (returning(reward=float("nan")), "reward", "error", "reward nan"),
        (returning(reward=None), "reward", "error", "reward None"),
        (returning(reward="1"), "reward", "error", "reward '1'"),
        (returning(terminated=1), "bools", "error", "terminated=1"),
        (returning(truncated=None), "bools", "error", "truncated=None"),
        (returning(info=[]), "info", "error", "info of type list"),
        (returning(info={"score": 1.5}), "score", "warning", "info['score'] is 1.5"),
        (returning(info={"score": float("nan")}), "score", "error", "info['score'] is nan"),
        (returning(info={"extra_logs": {"x": "y"}}), "extra_logs", "error", "info['extra_logs'] is"),
        (with_tasks(lambda split, seed: []), "tasks", "error", "is empty"),
        (with_tasks(lambda split, seed: [split]), "tasks", "error", "holds a str"),
        (with_tasks(lambda split, seed: [Task(split)] * 2), "tasks", "error", "two tasks of one id"),
        (with_tasks(lambda split, seed: [Task(f"{split}{next(COUNTER)}")]), "tasks", "error", "called again"),
        (with_tasks(lambda split, seed: [Task("same")]), "splits", "error", "1 of 1 evaluation tasks"),
        (with_tasks(lambda split, seed: [Task(split, prompt="same")]), "splits", "error", "1 of 1 evaluation tasks"),
        (with_tasks(lambda split, seed: [Task(split, label=threading.Lock())]), "pickle", "error", "cannot be pickled"),
        (with_tasks(lambda split, seed: 1 / 0), "tasks", "error", "tasks('train', 0) raised ZeroDivisionError"),
    ],
)
def test_each_planted_fault_is_found_and_can_be_mended(env_class, check: str, severity: str, what: str) -> None:
    timeout_s = 0.4 if "Hangs" in env_class.__name__ else 30.0
    problems = check_env(EnvFactory("it", env_class), max_turns=8, timeout_s=timeout_s)
    found = [problem for problem in problems if problem.check == check and what in problem.what]
    assert found, problems
    assert found[0].severity == severity
    assert found[0].how in str(found[0])


@pytest.mark.parametrize("env_class", [Good, GoodAsync])
def test_sound_environments_have_no_problem(env_class) -> None:
    assert check_env(EnvFactory("it", env_class)) == []


def test_arguments_that_cannot_be_pickled() -> None:
    class Takes(Good):
        def __init__(self, thing) -> None: ...

    problems = check_env(EnvFactory("it", Takes, {"thing": threading.Lock()}))
    assert [problem.check for problem in problems] == ["pickle"]
    assert "cannot be pickled" in problems[0].what


def test_the_users_mistake_is_not_the_environments() -> None:
    class Refuses(Good):
        def __init__(self) -> None:
            raise ConfigError("wanted more")

    with pytest.raises(ConfigError, match="wanted more"):
        check_env(EnvFactory("it", Refuses))


def test_given_tasks_stand_in_for_the_environments_own() -> None:
    tasks = [Task(id=str(number), seed=number) for number in range(3)]
    assert check_env(EnvFactory("it", with_tasks(lambda split, seed: 1 / 0)), tasks) == []


class GymnasiumStyle(Env):
    """As Gymnasium's tutorials write `reset`: seeded through `super()`, the task unread."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret = int(self.np_random.integers(1000))
        return f"reset {self.secret}", {}

    def step(self, action):
        return "", 1.0, True, False, {}


class GymnasiumStyleAsync(AsyncEnv):
    async def reset(self, *, seed=None, options=None):
        await super().reset(seed=seed)
        return f"reset {seed}", {}

    async def step(self, action):
        return "", 1.0, True, False, {}


@pytest.mark.parametrize("env", [GymnasiumStyle, GymnasiumStyleAsync])
def test_reset_may_call_super_as_in_gymnasium(env):
    assert not check_env(EnvFactory(env.__name__, env, {}))
    assert GymnasiumStyle().reset(seed=5) == GymnasiumStyle().reset(seed=5)


def test_an_environment_without_reset_is_told_so():
    class Without(Env):
        pass

    with pytest.raises(NotImplementedError, match="Without must define reset"):
        Without().reset(seed=1)
