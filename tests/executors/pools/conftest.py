"""What tests of pools share: bad environments made by path, and a patient wait."""

import asyncio
import time
from pathlib import Path

import pytest

from turngym.envs.base import Action
from turngym.envs.factory import EnvFactory
from turngym.envs.task import Task

BAD_ENVS = Path(__file__).with_name("bad_envs.py")


@pytest.fixture
def bad_env():
    """Make a factory that any process can use: `bad_env("Odd", log=...)`."""

    def make(name, **kwargs):
        return EnvFactory(name, f"{BAD_ENVS}:{name}", kwargs)

    return make


@pytest.fixture
def until():
    async def wait(condition, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "waited too long"
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def one_step():
    """Play one step of a fresh environment: `await one_step(pool, factory, "pid", timeout_s=5)` returns what it saw."""

    async def play(pool, factory, action, timeout_s=30.0):
        env = await pool.make(factory, timeout_s)
        try:
            await env.reset(Task(id="t"), timeout_s)
            return (await env.step(Action(action), timeout_s))[0]
        finally:
            await env.close()

    return play
