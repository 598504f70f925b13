"""Coroutines that share a loop: what blocks it is named, what waits for it goes on elsewhere or is told why not."""

import asyncio
import sys
import threading

import pytest

from turngym.envs import watched_loops
from turngym.envs.watched_loops import WatchedLoops
from turngym.errors import EnvError, LoopBlockedError


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.setattr(watched_loops, "BEAT_S", 0.002)
    monkeypatch.setattr(watched_loops, "BLOCKED_LOOKS", 5)
    found = WatchedLoops("test")
    yield found
    found.close()


@pytest.fixture
def release():
    """Lets what blocks go on, at the end of a test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def blocks(begun, release):
    async def run():
        begun.set()
        release.wait(60)
        return "blocked"

    return run


async def here():
    return threading.get_ident()


async def begin(loops, function, begun, what):
    """Start a call, and return once it runs."""
    task = asyncio.create_task(loops.call(function, what=what))
    async with asyncio.timeout(60):
        while not begun.is_set():
            await asyncio.sleep(0.001)
    return task


async def test_later_calls_and_those_that_had_not_begun_go_to_another_loop(loops, release, caplog):
    home = await loops.call(here, what="a")
    begun = threading.Event()
    bad = await begin(loops, blocks(begun, release), begun, "'bad'")
    async with asyncio.timeout(60):
        moved = await asyncio.gather(*(loops.call(here, what="a") for _ in range(3)))
    assert home not in moved
    release.set()
    async with asyncio.timeout(60):
        assert await bad == "blocked"  # it took its time, and nobody stopped it
        while await loops.call(here, what="a") != home:  # what is bound to the first loop finds it again
            await asyncio.sleep(0.001)
    (warning,) = caplog.messages
    assert "'bad' blocks the event loop" in warning
    assert "release.wait(60)" in warning


async def test_who_waits_for_a_blocked_loop_is_told_whose_fault_it_is(loops, release, monkeypatch):
    monkeypatch.setattr(watched_loops, "GIVEN_UP_LOOKS", 10)
    waits, begun = threading.Event(), threading.Event()

    async def healthy():
        waits.set()
        await asyncio.Event().wait()

    good = await begin(loops, healthy, waits, "'good'")
    bad = await begin(loops, blocks(begun, release), begun, "'bad'")
    async with asyncio.timeout(60):
        with pytest.raises(LoopBlockedError, match=r"blocked by 'bad' at \S*test_watched_loops.py:\d+ in run.*def"):
            await good
        release.set()
        assert await bad == "blocked"


@pytest.mark.parametrize("is_child", [False, True])
async def test_what_is_cancelled_while_it_blocks_is_given_up_with_its_thread(loops, release, caplog, is_child):
    waits, begun = threading.Event(), threading.Event()

    async def healthy():
        waits.set()
        await asyncio.Event().wait()

    async def parent():
        await asyncio.gather(blocks(begun, release)(), asyncio.sleep(60))

    good = await begin(loops, healthy, waits, "'good'")
    function = parent if is_child else blocks(begun, release)
    deadline = asyncio.timeout(None)

    async def bounded():
        async with deadline:
            await loops.call(function, what="'bad'")

    bad = asyncio.create_task(bounded())
    async with asyncio.timeout(60):
        while not begun.is_set():
            await asyncio.sleep(0.001)
        deadline.reschedule(0.0)
        with pytest.raises(TimeoutError) as caught:
            await bad
        with pytest.raises(LoopBlockedError, match="blocked by 'bad'"):
            await good
        assert await loops.call(here, what="a") not in (None, threading.get_ident())
    (note,) = caught.value.__cause__.__notes__
    assert "test_watched_loops.py" in note
    assert "must await there, or be a plain function" in note
    assert any("is given up" in message for message in caplog.messages)
    (left,) = loops._loops  # the blocked one is none of ours any more
    assert not left.calls


async def test_a_call_that_never_began_ends_with_its_caller(loops, release):
    begun, began = threading.Event(), []
    bad = await begin(loops, blocks(begun, release), begun, "'bad'")
    queued = asyncio.create_task(loops.call(lambda: began.append(1), what="'queued'"))
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    release.set()
    async with asyncio.timeout(60):
        await bad
    assert began == []


async def test_a_crowd_of_short_ones_blocks_nothing(loops, release, monkeypatch):
    begun = threading.Event()
    monkeypatch.setattr(watched_loops, "BEAT_S", 60.0)  # looks are taken here
    bad = await begin(loops, blocks(begun, release), begun, "'bad'")
    (loop,) = loops._loops
    tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(20)]
    with monkeypatch.context() as patched:
        running = iter(tasks)
        patched.setattr(watched_loops.asyncio, "current_task", lambda of: next(running))  # another one at each look
        for _ in range(20):
            loops.look()
    assert not loop.is_blocked
    for _ in range(10):
        loops.look()
    assert loop.is_blocked
    release.set()
    async with asyncio.timeout(60):
        await bad


async def test_what_ends_the_interpreter_elsewhere_ends_one_call_here(loops):
    async def exits():
        sys.exit(3)

    async def child_exits():
        await asyncio.gather(exits())

    async def cancels_itself():
        raise asyncio.CancelledError

    home = await loops.call(here, what="a")
    async with asyncio.timeout(60):
        for function in (exits, child_exits):
            with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
                await loops.call(function, what="a")
        with pytest.raises(EnvError, match="'it' cancelled itself"):
            await loops.call(cancels_itself, what="'it'")
        assert await loops.call(here, what="a") == home


async def test_closing_ends_what_runs(loops):
    begun, ended = threading.Event(), threading.Event()

    async def waits():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    call = await begin(loops, waits, begun, "'it'")
    loops.close()
    with pytest.raises(EnvError, match="'it' was running when its event loop was closed"):
        await call
    assert ended.wait(60)
