"""A vLLM that dies or hangs says so to everyone who waits for it, and another one takes its place."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from turngym.errors import EngineDeadError
from turngym.executors.engines import vllm_child
from turngym.executors.engines.base import UpdateMode

from .reference import recomputed

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280), pytest.mark.asyncio(loop_scope="session")]


def children(rig) -> list[int]:
    return [process.pid for process in rig.engine._child._engine.engine_core.resources.engine_manager.processes]


async def outcomes(*tasks: asyncio.Task) -> list[object]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def fails(call: Callable[[], Awaitable[None]]) -> None:
    """Call it until it raises."""
    async with asyncio.timeout(60):
        while True:
            await call()
            await asyncio.sleep(0.1)


async def test_a_hung_engine_is_named_and_replaced(rig):
    (pid,) = children(rig)
    running = [rig.ask(600) for _ in range(6)]
    await rig.sampled(5)
    await rig.engine.health()
    await rig.engine.pause(UpdateMode.KEEP)
    await asyncio.sleep(rig.engine._config.hang_timeout_s + 0.1)
    await rig.engine.health()  # a paused engine is not hung, however long it is silent
    await rig.engine.resume()
    await rig.engine.health()
    os.kill(pid, signal.SIGSTOP)
    held_at_the_end = rig.ask(3)
    with pytest.raises(EngineDeadError, match=r"no token for \d+ s while 7 requests run"):
        await fails(rig.engine.health)
    pausing = asyncio.create_task(rig.engine.pause(UpdateMode.KEEP))  # an update comes, which would wait for long
    await asyncio.sleep(0)
    with pytest.raises(EngineDeadError, match="while 7 requests run and a pause is awaited"):
        await fails(rig.engine.health)

    restarting = asyncio.create_task(rig.engine.restart())
    assert {type(outcome) for outcome in await outcomes(*running, held_at_the_end, pausing)} == {EngineDeadError}
    await restarting
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    rig.models = rig.models[:1]
    await rig.engine.health()
    completion = await rig.ask(20)
    assert set(completion.versions.tolist()) == {0}
    assert rig.distance(recomputed, completion) < rig.tolerance


async def test_nobody_waits_for_a_dead_engine(rig, monkeypatch):
    running = [rig.ask(600) for _ in range(6)]
    await rig.sampled(5)
    draining = asyncio.create_task(rig.engine.pause())
    await asyncio.sleep(0.05)
    held = [rig.ask(3) for _ in range(3)]
    os.kill(children(rig)[0], signal.SIGKILL)
    assert {type(outcome) for outcome in await outcomes(draining, *running, *held)} == {EngineDeadError}
    for call in (rig.engine.health, rig.engine.pause, rig.engine.resume, rig.engine.begin_update):
        with pytest.raises(EngineDeadError):
            await call()
    assert [type(outcome) for outcome in await outcomes(rig.ask(3))] == [EngineDeadError]

    num_ticks, during_start, make = 0, [], vllm_child._make

    async def tick() -> None:
        nonlocal num_ticks
        while True:
            await asyncio.sleep(0.01)
            num_ticks += 1

    def making(*arguments, **named):
        before, engine = num_ticks, make(*arguments, **named)
        during_start.append(num_ticks - before)
        return engine

    monkeypatch.setattr(vllm_child, "_make", making)
    ticking = asyncio.create_task(tick())
    await rig.engine.restart()
    ticking.cancel()
    assert during_start[0] > 20  # environments and requests to other engines go on meanwhile
    rig.models = rig.models[:1]
    again = rig.ask(100 * rig.pace)
    await rig.sampled(5)
    await rig.update(UpdateMode.RECOMPUTE)  # the new one takes weights, and tells versions apart
    completion = await again
    assert set(completion.versions.tolist()) == {0, 1}
    assert rig.distance(recomputed, completion) < rig.tolerance
