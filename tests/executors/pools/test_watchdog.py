import asyncio
import logging
import re
import time

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import Action, AsyncEnv
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.env_pool import EnvPool
from turngym.executors.limits import Limits
from turngym.executors.multi_turn import MultiTurn


class Base(AsyncEnv):
    async def reset(self, *, seed=None, options=None):
        return "go", {}

    async def step(self, action):
        await self.work()
        return "", 1.0, True, False, {}

    async def work(self):
        await asyncio.sleep(0.01)


class Sleeps(Base):
    async def work(self):
        time.sleep(1.2)


class Computes(Base):
    async def work(self):
        for _ in range(3):  # between two of them whoever waits for the interpreter's lock may have it
            re.fullmatch(r"(a+)+b", "a" * 24)  # half a second of backtracking that holds it


@pytest.mark.slow
@pytest.mark.parametrize(("env_class", "line"), [(Sleeps, "time.sleep(1.2)"), (Computes, "re.fullmatch")])
async def test_an_environment_that_blocks_the_loop_is_named(byte_agent, caplog, until, env_class, line):
    pool = EnvPool(1)
    limits = Limits()
    engine = ScriptedEngine(lambda request: [65])
    sampling = Sampling(max_tokens=4)
    started_at = time.monotonic()
    with caplog.at_level(logging.WARNING):
        runs = [
            MultiTurn(byte_agent, env, pool, limits).run(Task(id="t"), 0, engine, sampling)
            for env in (env_class, Base, Base)
        ]
        trajectories = await asyncio.gather(*runs)
        await until(lambda: caplog.records)
    assert all(trajectory.is_valid for trajectory in trajectories)
    (warning,) = [record.getMessage() for record in caplog.records if "blocks the event loop" in record.getMessage()]
    assert warning.startswith(f"{env_class.__name__}.step blocks the event loop")
    assert "test_watchdog.py" in warning
    assert line in warning
    assert "Base" not in warning
    assert 0.4 < pool.stats().counts.loop_blocked_s <= time.monotonic() - started_at


@pytest.mark.slow
async def test_a_loop_that_others_block_is_no_environments_fault(byte_agent):
    pool = EnvPool(1)
    env = await pool.make(Base, 30)
    await asyncio.sleep(0.2)
    time.sleep(0.9)
    await env.reset(Task(id="t"), 30)
    await env.close()
    assert pool.stats().counts.loop_blocked_s == 0


@pytest.mark.slow
async def test_a_crowd_of_short_calls_blocks_nothing(caplog):
    """Steps of half a millisecond, 1200 at once: the loop gives no sign of life for long, and nobody is to blame."""

    class Brief(Base):
        async def work(self):
            await asyncio.sleep(0)
            end = time.perf_counter() + 0.0005
            while time.perf_counter() < end:
                pass

    pool = EnvPool(1)
    envs = [await pool.make(Brief, 30) for _ in range(1200)]
    await asyncio.gather(*(env.step(Action("x"), 30) for env in envs))
    await asyncio.gather(*(env.close() for env in envs))
    assert pool.stats().counts.loop_blocked_s == 0
    assert "blocks the event loop" not in caplog.text
