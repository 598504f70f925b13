import asyncio
import copy
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import Action, AsyncEnv
from turngym.envs.factory import EnvFactory
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.branching import Branching
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.tree import run_attempts
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.pools.watchdog import blocking_now


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
        until = time.monotonic() + 1.2
        while time.monotonic() < until:  # then whoever waits for the interpreter's lock may have it
            re.fullmatch(r"(a+)+b", "a" * 24)  # some hundred milliseconds of backtracking that holds it


@pytest.mark.slow
@pytest.mark.parametrize(("env_class", "line"), [(Sleeps, "time.sleep(1.2)"), (Computes, "fullmatch(")])
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


class Signed(AsyncEnv):
    """Notes in whose name it is called; forks, and ends after two turns."""

    notes: set[str]
    can_fork = True

    def note(self):
        task = asyncio.current_task()
        assert task is not None
        self.notes.add(task.get_name())

    async def reset(self, *, seed=None, options=None):
        self._turn = 0
        self.note()
        return "go", {"side": 0}

    async def step(self, action):
        self._turn += 1
        self.note()
        ends = self._turn == 2
        return "", 1.0, ends, False, {"side": 1, "rewards": [1.0, 0.0]} if self.sides > 1 else {}

    async def fork(self):
        return copy.copy(self)


@pytest.mark.parametrize(("sides", "branching"), [(1, Branching()), (1, Branching((0,), 2)), (2, Branching())])
async def test_calls_are_made_in_the_name_of_their_episode(byte_agent, sides, branching):
    """Attempts by themselves, branches of one tree, the sides of a game."""

    class Own(Signed):
        notes: set[str] = set()

        @classmethod
        def num_sides(cls, kwargs):
            return sides

    Own.sides = sides
    engine = ScriptedEngine(lambda request: [65])
    executor = MultiTurn(byte_agent, EnvFactory("own", Own), EnvPool(1), Limits())
    await run_attempts(
        executor, Task(id="t"), (0, 1), lambda attempt: nullcontext(engine), Sampling(max_tokens=4), branching=branching
    )
    assert Own.notes == {"t/0", "t/1"}


@pytest.mark.slow
async def test_another_thread_is_told_what_blocks_the_loop_just_now():
    class Blocks(Base):
        async def work(self):
            answers.append(thread.submit(wait_for_it).result(30))

    def wait_for_it():
        while (blocking := blocking_now()) is None:
            time.sleep(0.01)
        return blocking

    answers: list = []
    pool = EnvPool(1)
    env = await pool.make(Blocks, 30)
    await env.reset(Task(id="t"), 30)
    with ThreadPoolExecutor(1) as thread:
        await asyncio.create_task(env.step("", 30), name="t/3")
    assert [(blocking.what, blocking.episode) for blocking in answers] == [("Blocks.step", "t/3")]
    assert answers[0].described.startswith("Blocks.step has blocked the event loop for 1 s, in episode 't/3'")
    await asyncio.sleep(0.3)  # the next look
    assert blocking_now() is None
    await env.close()
