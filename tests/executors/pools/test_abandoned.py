"""Environments that do not end when they are cancelled: they are told again, and at last left to themselves."""

import asyncio

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv
from turngym.envs.task import Task
from turngym.errors import DeadlineError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.pools import abandoned
from turngym.executors.pools.env_pool import EnvPool


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(abandoned, "GRACE_S", 0.02)


@pytest.fixture
def stubborn():
    class Stubborn(AsyncEnv):
        """Swallows so many cancellations of its reset, or all until it is released."""

        most = 10**9
        num_swallowed = 0
        release = asyncio.Event()
        closed_by: list[asyncio.Task] = []

        async def reset(self, *, seed=None, options=None):
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    if type(self).num_swallowed == self.most:
                        raise
                    type(self).num_swallowed += 1
            return "go", {}

        async def step(self, action):
            return "", 1.0, True, False, {}

        async def close(self):
            self.closed_by.append(asyncio.current_task())

    return Stubborn


def own_task() -> asyncio.Task:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_what_swallows_every_cancellation_is_left_to_itself_and_told_again(stubborn, caplog, until):
    pool = EnvPool(1)
    env = await pool.make(stubborn, 30)
    async with asyncio.timeout(30):
        with pytest.raises(DeadlineError, match=r"Stubborn.reset took longer than its deadline of 0.05 s"):
            await env.reset(Task(id="t"), 0.05)
    assert own_task().cancelling() == 0
    counts = pool.stats().counts
    assert (counts.num_stuck, counts.num_abandoned, pool.num_stuck) == (1, 1, 1)
    assert (
        caplog.records[0].getMessage().startswith("Stubborn.reset goes on after it was cancelled 3 times, 0.02 s apart")
    )
    assert stubborn.num_swallowed >= abandoned.MOST_CANCELLATIONS
    await until(lambda: stubborn.num_swallowed >= abandoned.MOST_CANCELLATIONS + 3)
    await env.close()
    assert stubborn.closed_by == [own_task()]
    stubborn.release.set()
    await until(lambda: pool.num_stuck == 0)
    assert pool.num_abandoned == 1
    assert caplog.records[-1].getMessage() == "Stubborn.reset has ended long after its deadline: it returned"


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_what_ends_when_it_is_told_again_ends_in_its_own_task(stubborn, caplog, most):
    pool = EnvPool(1)
    stubborn.most = most
    env = await pool.make(stubborn, 30)
    async with asyncio.timeout(30):
        with pytest.raises(DeadlineError):
            await env.reset(Task(id="t"), 0.02)
    assert (stubborn.num_swallowed, own_task().cancelling(), pool.num_abandoned) == (most, 0, 0)
    await asyncio.sleep(0.05)  # nobody cancels this task any more
    assert caplog.records == []


async def test_what_cleans_up_within_its_grace_is_told_once(stubborn, monkeypatch):
    monkeypatch.setattr(abandoned, "GRACE_S", 30.0)
    ends = []

    class Tidy(stubborn):
        async def reset(self, *, seed=None, options=None):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.03)
                ends.append(1)

    env = await EnvPool(1).make(Tidy, 30)
    with pytest.raises(DeadlineError):
        await env.reset(Task(id="t"), 0.02)
    assert ends == [1]


async def test_an_episode_fails_without_it_and_a_cancelled_one_stays_cancelled(byte_agent, stubborn, until):
    pool = EnvPool(1)
    executor = MultiTurn(byte_agent, stubborn, pool, Limits(env_timeout_s=0.05))
    engine, sampling = ScriptedEngine(lambda request: [65]), Sampling(max_tokens=4)
    runs = [asyncio.create_task(executor.run(Task(id="t"), number, engine, sampling)) for number in range(2)]
    await asyncio.sleep(0.02)
    runs[1].cancel()
    async with asyncio.timeout(30):
        failed, cancelled = await asyncio.gather(*runs, return_exceptions=True)
    assert failed.failure.kind is FailureKind.ENV_TIMEOUT
    assert isinstance(cancelled, asyncio.CancelledError)
    assert set(stubborn.closed_by) == set(runs)
    assert pool.num_stuck == 2
    stubborn.release.set()
    await until(lambda: pool.num_stuck == 0)
