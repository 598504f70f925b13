import asyncio
from functools import partial

import pytest

from turngym.envs.base import AsyncEnv, Env
from turngym.envs.task import Task
from turngym.errors import EnvLostError, EnvUnavailableError, ProgramError
from turngym.executors.pools import breaker as breaker_module
from turngym.executors.pools import threads
from turngym.executors.pools.base import Ticket
from turngym.executors.pools.breaker import BURST, BreakerState
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.pools.family import Family
from turngym.executors.pools.gate import FairGate
from turngym.executors.pools.stats import pool_metrics


def ticket(timeout_s=30.0, wait_s=30.0):
    return Ticket(timeout_s, asyncio.get_running_loop().time() + wait_s)


async def call(family, outcome=None, method="step", **times):
    """Run one call that returns at once, or raises."""
    own = ticket(**times)

    async def work():
        own.begin()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return await family.run(method, own, work)


async def break_it(family, method="step"):
    for _ in range(BURST):
        with pytest.raises(OSError, match="down"):
            await call(family, OSError("down"), method)


class Held:
    """Calls that stay until they are let go."""

    def __init__(self, family):
        self._family = family
        self.go = asyncio.Event()

    def begin(self, number, **times):
        return [asyncio.ensure_future(self._call(**times)) for _ in range(number)]

    async def _call(self, **times):
        own = ticket(**times)

        async def work():
            own.begin()
            await self.go.wait()

        await self._family.run("step", own, work)


async def test_what_runs_and_waits_is_counted():
    family = Family("f", most=3)
    held = Held(family)
    calls = held.begin(5)
    await asyncio.sleep(0)
    stats = family.stats()
    assert (stats.running, stats.waiting, stats.limit) == (3, 2, 3)
    assert (stats.latency_s, stats.error_rate) == (None, None)
    held.go.set()
    await asyncio.gather(*calls)
    stats = family.stats()
    assert (stats.running, stats.waiting, stats.num_calls, stats.error_rate) == (0, 0, 5, 0.0)
    assert stats.latency_s >= 0


async def test_a_wait_has_a_deadline_of_its_own():
    family = Family("f", most=1)
    held = Held(family)
    calls = held.begin(1)
    await asyncio.sleep(0)
    with pytest.raises(EnvUnavailableError, match="1 others were running, and its limit is 1"):
        await call(family, wait_s=0.05)
    held.go.set()
    await asyncio.gather(*calls)
    assert await call(family, 7) == 7


@pytest.mark.parametrize("num_waiting", [0, 3])
async def test_cancelled_calls_leave_no_place_taken(num_waiting):
    family = Family("f", most=2)
    held = Held(family)
    calls = held.begin(2 + num_waiting)
    await asyncio.sleep(0)
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert (family.stats().running, family.stats().waiting) == (0, 0)
    assert await call(family, 1, wait_s=0.1) == 1


async def test_after_a_burst_of_failures_calls_wait_and_one_tries(monkeypatch):
    monkeypatch.setattr(breaker_module, "FIRST_PAUSE_S", 0.1)
    family = Family("f")
    await break_it(family)
    assert family.stats().breaker is BreakerState.OPEN
    assert await call(family, 1, "reset") == 1  # another kind of call is not held up
    held = Held(family)
    calls = held.begin(20)
    await asyncio.sleep(0)
    assert family.stats().waiting == 20
    async with asyncio.timeout(30):
        while family.stats().breaker is not BreakerState.HALF_OPEN:
            await asyncio.sleep(0.01)
        assert (family.stats().running, family.stats().waiting) == (1, 19)  # one alone tries
        held.go.set()
        await asyncio.gather(*calls)
    stats = family.stats()
    assert (stats.breaker, stats.num_opened, stats.running, stats.waiting) == (BreakerState.CLOSED, 1, 0, 0)
    assert stats.num_failures == BURST


async def test_a_probe_that_is_cancelled_is_replaced(monkeypatch):
    monkeypatch.setattr(breaker_module, "FIRST_PAUSE_S", 0.05)
    family = Family("f")
    await break_it(family)
    held = Held(family)
    (first,) = held.begin(1)
    async with asyncio.timeout(30):
        while not family.stats().running:
            await asyncio.sleep(0.01)
        others = held.begin(2)
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        held.go.set()
        await asyncio.gather(*others)
    assert family.stats().breaker is BreakerState.CLOSED


async def test_a_wait_for_the_breaker_ends_with_what_broke():
    family = Family("f")
    await break_it(family)
    with pytest.raises(EnvUnavailableError, match=r"f\.step had to wait.*OSError: down"):
        await call(family, wait_s=0.05)


async def test_what_never_comes_back_is_given_up(monkeypatch):
    monkeypatch.setattr(breaker_module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(breaker_module, "LONGEST_PAUSE_S", 0.002)
    family = Family("f")
    await break_it(family)

    async def fails():
        with pytest.raises((OSError, EnvUnavailableError)) as caught:
            await call(family, OSError("down"))
        return type(caught.value)

    kinds = await asyncio.gather(*(fails() for _ in range(30)))
    assert kinds.count(OSError) == breaker_module.MOST_PROBES  # the others did not have to fail one by one
    assert kinds.count(EnvUnavailableError) == 30 - breaker_module.MOST_PROBES


@pytest.mark.parametrize("error", [EnvLostError("its worker"), ProgramError("no code")])
async def test_what_is_not_the_environments_fault_does_not_count(error):
    family = Family("f")
    for _ in range(3 * BURST):
        with pytest.raises(type(error)):
            await call(family, error)
    stats = family.stats()
    assert (stats.breaker, stats.num_failures) == (BreakerState.CLOSED, 0)
    assert stats.num_lost == (3 * BURST if isinstance(error, EnvLostError) else 0)


async def test_families_of_a_pool_have_names_and_metrics():
    class Named(Env):
        family = "tools"

        def reset(self, *, seed=None, options=None):
            return "go", {}

    class Other(AsyncEnv):
        pass

    pool = EnvPool(2, max_concurrency=5)
    for env_class in (Named, Other, Named):
        env = await pool.make(env_class, 30)
        if env_class is Named:
            await env.reset(Task(id="t"), 30)
        await env.close()
    assert {name: stats.num_calls for name, stats in pool.stats().families.items()} == {"tools": 4, "Other": 1}
    metrics = pool_metrics([pool.stats(), pool.stats()])
    assert metrics["env_pool/tools/num_calls"] == 8
    assert metrics["env_pool/tools/limit"] == 5
    assert metrics["env_pool/tools/error_rate"] == 0
    assert metrics["env_pool/tools/breakers_open"] == 0
    assert metrics["env_pool/num_envs"] == metrics["env_pool/loop_blocked_s"] == 0


async def test_threads_are_shared_by_weight_under_the_pool(monkeypatch):
    """Of 90 steps of either kind, each a second long, twice as many of the heavier have begun while both wait."""
    order = []
    monkeypatch.setattr(threads, "FairGate", partial(FairGate, clock=lambda: float(len(order))))

    class Heavy(Env):
        def reset(self, *, seed=None, options=None):
            order.append(type(self).__name__)
            return "go", {}

    class Light(Heavy):
        pass

    pool = EnvPool(1, weights={"Heavy": 2.0})
    heavy = [await pool.make(Heavy, 30) for _ in range(90)]
    light = [await pool.make(Light, 30) for _ in range(90)]
    await asyncio.gather(*(env.reset(Task(id="t"), 30) for env in [*light, *heavy]))
    assert len(order) == 180
    assert abs(order[:90].count("Heavy") - 60) <= 2
