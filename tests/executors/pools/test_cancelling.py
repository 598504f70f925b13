"""Wherever an episode is cancelled, what it held is free again."""

import asyncio
import threading

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.pools.base import Ticket
from turngym.executors.pools.breaker import BURST, BreakerState
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.pools.family import FamilyStats

STAGES = ["make", "reset", "generate", "step", "queue", "breaker"]


def sync_env(stage, release):
    class Held(Env):
        made, closed = 0, 0

        def __init__(self):
            type(self).made += 1
            self.hold("make")

        def hold(self, name):
            if name == stage:
                release.wait()

        def reset(self, *, seed=None, options=None):
            self.hold("reset")
            return "go", {}

        def step(self, action):
            self.hold("step")
            if action == "!":
                raise OSError("down")
            return "", 1.0, True, False, {}

        def close(self):
            type(self).closed += 1

    return Held


def async_env(stage):
    class Held(AsyncEnv):
        made, closed = 0, 0

        def __init__(self):
            type(self).made += 1

        async def reset(self, *, seed=None, options=None):
            if stage == "reset":
                await asyncio.sleep(60)
            return "go", {}

        async def step(self, action):
            if stage == "step":
                await asyncio.sleep(60)
            if action == "!":
                raise OSError("down")
            return "", 1.0, True, False, {}

        async def close(self):
            type(self).closed += 1

    return Held


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stage"),
    # An asynchronous environment is made without awaiting anything.
    [("sync", stage) for stage in STAGES] + [("async", stage) for stage in STAGES if stage != "make"],
)
async def test_counts_return_to_zero(byte_agent, until, release, kind, stage):
    env_class = sync_env(stage, release) if kind == "sync" else async_env(stage)
    pool = EnvPool(2, max_concurrency=2, close_timeout_s=5.0)
    executor = MultiTurn(byte_agent, env_class, pool, Limits())
    engine = ScriptedEngine(lambda r: Reply([65], [-1.0], latency_s=60.0 if stage in ("generate", "queue") else 0.0))
    sampling = Sampling(max_tokens=4)

    def stats():
        return pool.stats().families.get("Held", FamilyStats(0, 0, None, None, None, BreakerState.CLOSED))

    holders = []
    if stage == "queue":  # both places under the limit are taken
        gate = asyncio.Event()
        for _ in range(2):
            holders.append(asyncio.ensure_future(pool._family("Held").run("hold", Ticket(60, 1e9), gate.wait)))
        await asyncio.sleep(0)
    if stage == "breaker":
        failing = ScriptedEngine(lambda request: [ord("!")])
        for _ in range(BURST):
            assert not (await executor.run(Task(id="t"), 0, failing, sampling)).is_valid
        assert stats().breaker == "open"
    running = [asyncio.ensure_future(executor.run(Task(id=str(n)), 0, engine, sampling)) for n in range(4)]
    if stage == "generate":
        await until(lambda: engine.num_running == 4)
    elif stage == "queue":
        await until(lambda: stats().waiting >= 4)
    elif stage == "breaker":
        await until(lambda: stats().waiting == 4)
    else:
        num_asked = 4 if stage == "step" else 0
        await until(lambda: (stats().running, stats().waiting, len(engine.requests)) == (2, 2, num_asked))
    for each in (*running, *holders):
        each.cancel()
    asyncio.get_running_loop().call_later(0.1, release.set)
    results = await asyncio.gather(*running, *holders, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await until(lambda: env_class.closed == env_class.made)
    assert engine.num_running == 0
    assert (stats().running, stats().waiting) == (0, 0)
    await until(lambda: pool.stats().counts.num_envs == 0)
    release.set()
    other = ScriptedEngine(lambda request: [65])
    if stage in ("make", "reset", "step") and kind == "async":
        return  # this one holds for ever
    trajectories = await asyncio.gather(*(executor.run(Task(id="t"), 0, other, sampling) for _ in range(4)))
    assert all(trajectory.is_valid for trajectory in trajectories)  # nothing is taken
