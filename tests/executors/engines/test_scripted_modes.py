"""A scripted engine's tokens carry the versions of the time in which they were sampled."""

import asyncio

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.errors import EngineError, WeightSyncError
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.scripted import Reply, ScriptedEngine


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers = [timer.when() for timer in self._scheduled if not timer.cancelled()]
        if not self._ready and timers:
            self._now = max(self._now, min(timers))
        super()._run_once()


def in_virtual_time(coroutine):
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(coroutine)


def ask(engine: ScriptedEngine, num_tokens: int) -> asyncio.Task:
    return asyncio.create_task(engine.generate(np.array([1], np.int32), Sampling(num_tokens)))


async def update(engine: ScriptedEngine, version: int, mode: UpdateMode, seconds: float = 0.0) -> None:
    await engine.pause(mode)
    await engine.begin_update()
    await asyncio.sleep(seconds)
    await engine.finish_update(version)
    await engine.resume()


@pytest.mark.parametrize("mode", [UpdateMode.RECOMPUTE, UpdateMode.KEEP])
def test_versions_in_proportion_to_the_time_that_passed(mode):
    """10 tokens of 1 s each: 4 s before the first update, 3.5 s to the second, the rest after; pauses do not count."""

    async def run():
        engine = ScriptedEngine(token_latency_s=1.0)
        clock = asyncio.get_running_loop().time
        running = ask(engine, 10)
        await asyncio.sleep(4.0)
        short = ask(engine, 2)
        await update(engine, 1, mode, seconds=100.0)
        await asyncio.sleep(3.5)
        await update(engine, 2, mode, seconds=7.0)
        return (await running).versions.tolist(), (await short).versions.tolist(), clock()

    assert in_virtual_time(run()) == ([0] * 4 + [1] * 3 + [2] * 3, [1, 1], pytest.approx(117.0))


def test_time_stands_still_also_where_a_pause_follows_at_once_on_a_resume():
    """4 s, then two pauses of 100 s on end: no second of the other 6 passes in either."""

    async def run():
        engine = ScriptedEngine(token_latency_s=1.0)
        running = ask(engine, 10)
        await asyncio.sleep(4.0)
        await engine.pause(UpdateMode.KEEP)
        await asyncio.sleep(100.0)
        await engine.resume()
        await update(engine, 1, UpdateMode.KEEP, seconds=100.0)
        return (await running).versions.tolist(), asyncio.get_running_loop().time()

    assert in_virtual_time(run()) == ([0] * 4 + [1] * 6, pytest.approx(210.0))


def test_a_drained_completion_has_one_version():
    async def run():
        engine = ScriptedEngine(token_latency_s=1.0)
        running = ask(engine, 10)
        await asyncio.sleep(4.0)
        held_at = []

        async def late():
            completion = await engine.generate(np.array([1], np.int32), Sampling(2))
            held_at.append(asyncio.get_running_loop().time())
            return completion

        updating = asyncio.create_task(update(engine, 1, UpdateMode.DRAIN, seconds=5.0))
        await asyncio.sleep(1.0)
        held = asyncio.create_task(late())
        await updating
        return (await running).versions.tolist(), (await held).versions.tolist(), held_at

    assert in_virtual_time(run()) == ([0] * 10, [1, 1], [pytest.approx(10.0 + 5.0 + 2.0)])


def test_a_completion_that_ends_in_the_moment_of_the_pause_is_the_old_versions():
    async def run():
        engine = ScriptedEngine(token_latency_s=1.0)
        running = ask(engine, 3)
        await asyncio.sleep(3.0)
        await update(engine, 1, UpdateMode.KEEP)
        return (await running).versions.tolist()

    assert in_virtual_time(run()) == [0, 0, 0]


def test_a_scripts_own_versions_stand():
    async def run():
        engine = ScriptedEngine([Reply([5, 6, 7], [-1.0] * 3, versions=[8, 8, 9], latency_s=3.0)])
        running = ask(engine, 2)
        await asyncio.sleep(1.0)
        await update(engine, 1, UpdateMode.RECOMPUTE)
        return (await running).versions.tolist()

    assert in_virtual_time(run()) == [8, 8]


def test_a_held_request_that_is_cancelled_or_killed_ends():
    async def run():
        engine = ScriptedEngine(token_latency_s=1.0)
        first, second = ask(engine, 10), ask(engine, 10)
        await asyncio.sleep(1.0)
        await engine.pause(UpdateMode.KEEP)
        first.cancel()
        await asyncio.wait([first])
        left = engine.num_running
        engine.kill("of the test")
        return left, engine.num_running, await asyncio.gather(second, return_exceptions=True)

    left, none, (error,) = in_virtual_time(run())
    assert (left, none) == (1, 1)
    assert "of the test" in str(error)


async def test_an_update_out_of_order_is_an_error():
    engine = ScriptedEngine(token_latency_s=60.0)
    running = ask(engine, 10)
    await asyncio.sleep(0)
    with pytest.raises(WeightSyncError, match="call pause"):
        await engine.begin_update()
    await engine.pause(UpdateMode.RECOMPUTE)
    with pytest.raises(EngineError, match="1 requests are held by an earlier pause"):
        await engine.pause()
    await engine.begin_update()
    with pytest.raises(WeightSyncError, match="begun and not finished"):
        await engine.resume()
    running.cancel()
