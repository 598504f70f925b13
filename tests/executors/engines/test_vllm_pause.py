"""A pause waits as long as a completion may take, and one that fails leaves the engine as it was; vLLM is a fake."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from turngym.errors import DeadlineError, EngineDeadError
from turngym.executors.engines import vllm_child
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.engines.vllm_child import VllmChild


class FakeVllm:
    """What a pause asks of AsyncLLM."""

    def __init__(self) -> None:
        self.errored = False
        self.calls: list[str] = []
        self.hangs_in: set[str] = set()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        await self._answer("pause")

    async def resume_generation(self) -> None:
        await self._answer("resume")

    async def _answer(self, call: str) -> None:
        self.calls.append(call)
        if call in self.hangs_in:
            await asyncio.Event().wait()


class FakeChild(VllmChild):
    def __init__(self, config: VllmConfig, vllm: FakeVllm) -> None:
        self._timeout_s, self._engine = config.sync_timeout_s, vllm
        loop = asyncio.get_running_loop()
        self.gone, self._clock, self.heard_at = loop.create_future(), loop.time, loop.time()
        self._submitted = asyncio.Event()
        self._submitted.set()


class Rig:
    def __init__(self, **timeouts: float) -> None:
        config = VllmConfig("no model", "float32", 64, **timeouts)
        self.engine, self.vllm = VllmEngine(config, on_gpu=False), FakeVllm()
        self.child = self.engine._child = FakeChild(config, self.vllm)
        self._ends: list[asyncio.Event] = []
        self.running: set[asyncio.Task[None]] = set()

    async def begin(self) -> asyncio.Event:
        """Begin a request; return what ends it."""
        end, begun = asyncio.Event(), asyncio.Event()

        async def request() -> None:
            async with self.engine._admitted("a request"):
                begun.set()
                await end.wait()

        self.running.add(asyncio.create_task(request()))
        await begun.wait()
        return end

    async def is_open(self) -> bool:
        """Whether a request that comes now begins, and ends."""
        async with asyncio.timeout(10):
            (await self.begin()).set()
        return True


async def test_a_completion_that_is_longer_than_a_part_of_an_update_is_waited_for() -> None:
    rig = Rig(sync_timeout_s=0.01, drain_timeout_s=60.0)
    end = await rig.begin()
    pausing = asyncio.create_task(rig.engine.pause())
    done, _ = await asyncio.wait({pausing}, timeout=0.05)
    assert not done
    assert rig.vllm.calls == []
    end.set()
    await pausing
    assert rig.vllm.calls == ["pause"]
    await rig.engine.resume()
    assert await rig.is_open()


@pytest.mark.parametrize("how", ["late", "cancelled", "stuck", "held"])
async def test_an_engine_goes_on_after_a_pause_that_failed(how: str) -> None:
    """A request is late; the caller gives up; vLLM does not stop, between two tokens either."""
    rig = Rig(sync_timeout_s=0.02, drain_timeout_s=0.02 if how == "late" else 60.0)
    if how in ("stuck", "held"):
        rig.vllm.hangs_in.add("pause")
    else:
        await rig.begin()
    pausing = asyncio.create_task(rig.engine.pause(UpdateMode.KEEP if how == "held" else UpdateMode.DRAIN))
    await asyncio.sleep(0)
    if how == "cancelled":
        pausing.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else DeadlineError):
        await pausing
    assert rig.vllm.calls[-1] == "resume"
    assert await rig.is_open()


async def test_an_engine_that_can_be_neither_paused_nor_resumed_is_dead() -> None:
    rig = Rig(sync_timeout_s=0.02)
    rig.vllm.hangs_in |= {"pause", "resume"}
    with pytest.raises(EngineDeadError, match=r"neither paused nor resumed: the resume took longer than 0.02 s"):
        await rig.engine.pause()


async def test_a_held_engine_stays_held_when_a_further_pause_fails() -> None:
    rig = Rig(sync_timeout_s=0.02)
    await rig.engine.pause()
    rig.vllm.hangs_in.add("pause")
    with pytest.raises(DeadlineError):
        await rig.engine.pause()
    assert rig.vllm.calls == ["pause", "pause"]


async def test_an_engine_that_hangs_while_it_is_waited_for_is_known_as_dead() -> None:
    rig = Rig(hang_timeout_s=5.0, drain_timeout_s=60.0)
    end = await rig.begin()
    pausing = asyncio.create_task(rig.engine.pause())
    await asyncio.sleep(0)
    await rig.engine.health()
    rig.child.heard_at -= 6.0
    with pytest.raises(EngineDeadError, match=r"no token for 6 s while 1 requests run"):
        await rig.engine.health()
    end.set()
    await pausing
    await rig.engine.health()  # nothing runs any more


async def test_a_request_on_its_way_to_an_engine_that_is_stopped_fails():
    """vLLM takes it for a moment still, and would never answer it."""
    rig = Rig()
    rig.child._num_submitting = 0
    request = asyncio.create_task(rig.child.answer("prompt", None, "a request", None, 0))
    await asyncio.sleep(0)  # it lets others of the same moment come first
    rig.child.gone.set_result(None)
    with pytest.raises(EngineDeadError, match="stopped before it took 'a request'"):
        await request
    assert rig.vllm.calls == []


async def test_an_engine_whose_start_nobody_waits_for_any_more_is_ended(monkeypatch) -> None:
    may_end, ended = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    made = SimpleNamespace(shutdown=lambda: loop.call_soon_threadsafe(ended.set))
    monkeypatch.setattr(vllm_child, "_make", lambda config, *, on_gpu: may_end.wait(60) and made)
    starting = asyncio.create_task(VllmChild.started(VllmConfig("no model", "float32", 64), on_gpu=False))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not ended.is_set()
    may_end.set()
    async with asyncio.timeout(60):
        await ended.wait()
