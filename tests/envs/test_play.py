"""Playing an environment by hand."""

import pytest

from turngym import AsyncEnv, Env, RawText, Task
from turngym.envs.factory import EnvFactory
from turngym.envs.play import play
from turngym.envs.resolution import resolve


def scripted(*actions: str):
    left = list(actions)

    def read(prompt: str) -> str:
        assert prompt == "action> "
        if not left:
            raise EOFError
        return left.pop(0)

    return read


def test_an_episode_to_its_end() -> None:
    shown: list[str] = []
    factory = resolve("Guess", {"low": 1, "high": 3})
    reward = play(factory, Task("t", seed=0), read=scripted("1", "x", "2", "3"), write=shown.append)
    assert reward == 1.0
    assert shown[0] == "task t"
    assert "from 1 to 3" in shown[1]
    assert "I saw no number" in "".join(shown)
    assert shown[-1] == "terminated, total reward 1"


def test_input_that_ends_early_closes_the_environment() -> None:
    closed = []

    class Mine(AsyncEnv):
        async def reset(self, *, seed=None, options=None):
            return [{"role": "system", "content": "rules"}, {"role": "user", "content": "go"}], {}

        async def step(self, action):
            return RawText("raw"), 0.25, False, action == "stop", {"score": 0.5}

        async def close(self):
            closed.append(True)

    shown: list[str] = []
    assert play(EnvFactory("Mine", Mine), Task("t"), read=scripted("a", "b"), write=shown.append) is None
    assert shown[1] == "system: rules\nuser: go"
    assert shown[2] == "raw\nreward 0.25 (score=0.5)"
    assert shown[-1] == "\ninput ended, total reward 0.5 so far"
    assert play(EnvFactory("Mine", Mine), Task("t"), read=scripted("stop"), write=shown.append) == 0.25
    assert shown[-1] == "truncated, total reward 0.25"
    assert closed == [True, True]


def test_the_environment_is_closed_when_it_raises() -> None:
    closed = []

    class Broken(Env):
        def reset(self, *, seed=None, options=None):
            raise ZeroDivisionError

        def close(self):
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        play(EnvFactory("Broken", Broken), Task("t"), read=scripted(), write=lambda _: None)
    assert closed == [True]
