"""The synchronous face of asynchronous environments."""

import asyncio
import threading

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from turngym.envs.base import AsyncEnv, Env
from turngym.envs.facade import SyncFacade, synchronous
from turngym.envs.task import Task
from turngym.errors import DeadlineError


class Recorder(AsyncEnv):
    def __init__(self) -> None:
        self.calls: list[object] = []

    async def reset(self, *, seed=None, options=None):
        await asyncio.sleep(0)
        self.calls.append((seed, options))
        return f"seed {seed}", {}

    async def step(self, action):
        if action == "hang":
            try:
                await asyncio.sleep(600)
            finally:
                self.calls.append("cancelled")
        if action == "raise":
            raise ZeroDivisionError("mine")
        self.calls.append(threading.current_thread().name)
        return "", 0.5, True, False, {}

    async def close(self) -> None:
        self.calls.append("closed")


def test_a_plain_loop() -> None:
    env = SyncFacade(Recorder())
    task = Task(id="t", seed=4)
    assert env.reset(seed=4, options={"task": task}) == ("seed 4", {})
    assert env.step("x") == ("", 0.5, True, False, {})
    assert env.tasks("train", 0)[0].id.startswith("Recorder/train/")
    env.close()
    env.close()
    assert env.env.calls == [(4, {"task": task}), "turngym-Recorder", "closed"]
    assert not [thread for thread in threading.enumerate() if thread.name == "turngym-Recorder"]


def test_seeds_follow_from_the_last_one_given() -> None:
    env = SyncFacade(Recorder())
    first = [env.reset(seed=1), env.reset(), env.reset()]
    again = [env.reset(seed=1), env.reset(), env.reset()]
    env.close()
    assert first == again
    assert len({observation for observation, _ in first}) == 3


def test_what_the_environment_raises_comes_through() -> None:
    env = SyncFacade(Recorder())
    with pytest.raises(ZeroDivisionError, match="mine"):
        env.step("raise")
    assert env.step("x")[1] == 0.5
    env.close()


def test_a_deadline_cancels_the_coroutine_and_names_the_call() -> None:
    env = SyncFacade(Recorder(), timeout_s=0.2)
    with pytest.raises(DeadlineError, match=r"step of Recorder took longer than its deadline of 0.2 s"):
        env.step("hang")
    assert env.step("x")[1] == 0.5
    assert env.env.calls[0] == "cancelled"
    env.close()


def test_closing_cancels_what_still_runs() -> None:
    env = SyncFacade(Recorder(), timeout_s=0.2)
    future = env._loop.submit(env.env.step("hang"))
    env.reset(seed=0)
    env.close()
    assert future.cancelled()
    assert env.env.calls[-1] == "cancelled"


def test_a_synchronous_environment_stays_itself() -> None:
    env = Env()
    assert synchronous(env) is env
    assert isinstance(synchronous(Recorder()), gymnasium.Env)


def test_gymnasiums_own_checker_is_content_with_a_facade() -> None:
    env = SyncFacade(Recorder())
    gymnasium_check_env(env)
    env.close()
