"""Blocking functions in threads, with deadlines."""

import asyncio
import decimal
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

from turngym.envs import daemon_threads
from turngym.envs.daemon_threads import DaemonThreads
from turngym.errors import DeadlineError


async def test_results_and_exceptions_come_back() -> None:
    threads = DaemonThreads(2, "t")
    assert await threads.call(lambda a, b: a + b, 1, 2, timeout_s=10, what="sum") == 3
    for raised in (ValueError("x"), TimeoutError("theirs")):
        with pytest.raises(type(raised), match=str(raised)):
            await threads.call(_raise, raised, timeout_s=10, what="it")


@pytest.mark.parametrize("raised", [SystemExit(3), StopIteration(4), KeyboardInterrupt()])
async def test_what_would_stop_the_callers_loop_becomes_an_error(raised: BaseException) -> None:
    with pytest.raises(RuntimeError, match=f"raised {type(raised).__name__}"):
        await DaemonThreads(1, "t").call(_raise, raised, timeout_s=10, what="it")


@pytest.mark.slow
async def test_hung_calls_are_given_up_and_replaced() -> None:
    threads = DaemonThreads(2, "t")
    release = threading.Event()
    hung = [threads.call(release.wait, timeout_s=0.2, what="it") for _ in range(4)]
    good = [threads.call(lambda: "done", timeout_s=0.2, what="it") for _ in range(4)]
    results = await asyncio.gather(*hung, *good, return_exceptions=True)
    release.set()
    assert [type(result) for result in results[:4]] == [DeadlineError] * 4
    assert results[4:] == ["done"] * 4


@pytest.mark.slow
async def test_the_deadline_does_not_count_the_wait_for_a_thread() -> None:
    threads = DaemonThreads(1, "t")
    calls = [threads.call(time.sleep, 0.15, timeout_s=0.6, what="it") for _ in range(6)]
    assert await asyncio.gather(*calls) == [None] * 6


async def test_no_more_than_so_many_run_at_once() -> None:
    threads = DaemonThreads(3, "t")
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    await asyncio.gather(*(threads.call(work, timeout_s=10, what="it") for _ in range(20)))
    assert most == 3
    assert threads._busy == 0


async def test_a_cancelled_caller_frees_its_place() -> None:
    threads = DaemonThreads(1, "t")
    release = threading.Event()
    task = asyncio.create_task(threads.call(release.wait, timeout_s=60, what="it"))
    waiting = asyncio.create_task(threads.call(release.wait, timeout_s=60, what="it"))
    await asyncio.sleep(0.05)
    for one in (waiting, task):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    assert await threads.call(lambda: 5, timeout_s=10, what="it") == 5
    release.set()


def test_a_hung_call_does_not_hold_up_the_process() -> None:
    code = (
        "import asyncio, time\n"
        "from turngym.envs.daemon_threads import DaemonThreads\n"
        "try: asyncio.run(DaemonThreads(1, 't').call(time.sleep, 600, timeout_s=0.1, what='it'))\n"
        "except TimeoutError: print('late')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "late"


def _raise(error: BaseException) -> None:
    raise error


async def test_a_cancellation_that_comes_with_the_result_is_not_lost() -> None:
    threads = DaemonThreads(1, "t")
    has_begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        may_end.wait()

    call = asyncio.ensure_future(threads.call(work, timeout_s=30, what="it"))
    coroutine = call.get_coro()
    assert coroutine is not None
    while not has_begun.is_set():
        await asyncio.sleep(0.01)
    coroutine.cr_frame.f_locals["call"].result.set_result(True)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_end.set()


async def test_threads_go_from_call_to_call_and_end_when_they_are_idle(monkeypatch) -> None:
    monkeypatch.setattr(daemon_threads, "IDLE_S", 0.05)
    threads = DaemonThreads(2, "t")
    used = {await threads.call(threading.current_thread, timeout_s=10, what="it") for _ in range(5)}
    assert len(used) == 1
    await asyncio.gather(*(threads.call(time.sleep, 0.01, timeout_s=10, what="it") for _ in range(9)))
    assert threads._busy == 0
    assert len(threads._idle) == 2
    async with asyncio.timeout(10):
        while any(thread.is_alive() for thread in used) or threads._idle:
            await asyncio.sleep(0.01)
    assert await threads.call(lambda: 5, timeout_s=10, what="it") == 5


async def test_a_thread_that_was_given_up_ends_with_its_call() -> None:
    threads = DaemonThreads(1, "t")
    release, hung = threading.Event(), []

    def work() -> None:
        hung.append(threading.current_thread())
        release.wait()

    with pytest.raises(DeadlineError):
        await threads.call(work, timeout_s=0.05, what="it")
    assert await threads.call(threading.current_thread, timeout_s=10, what="it") is not hung[0]
    release.set()
    hung[0].join(10)
    assert not hung[0].is_alive()
    assert threads._busy == 0
    assert len(threads._idle) == 1


async def test_an_idle_thread_keeps_nothing_of_its_last_call() -> None:
    threads = DaemonThreads(1, "t")
    held = Held()
    gone = weakref.ref(held)
    assert await threads.call(lambda one: one, held, timeout_s=10, what="it") is held
    del held
    async with asyncio.timeout(10):
        while gone() is not None:
            await asyncio.sleep(0.01)
    assert len(threads._idle) == 1


async def test_calls_of_a_loop_that_is_closed_keep_no_thread_from_others() -> None:
    threads = DaemonThreads(1, "t")
    may_end = threading.Event()

    async def leave() -> None:
        await threads.call(may_end.wait, timeout_s=0.01, what="it")

    def run() -> None:
        with pytest.raises(DeadlineError):
            asyncio.run(leave())

    await asyncio.to_thread(run)
    may_end.set()
    assert await threads.call(lambda: 5, timeout_s=10, what="it") == 5


async def test_a_slow_destructor_belongs_to_its_own_call() -> None:
    threads = DaemonThreads(1, "t")

    class Slow:
        def __del__(self) -> None:
            time.sleep(0.4)

    for _ in range(3):
        with pytest.raises(DeadlineError):
            await threads.call(lambda one: None, Slow(), timeout_s=0.1, what="it")
        assert await threads.call(lambda: 5, timeout_s=0.3, what="it") == 5


async def test_context_variables_begin_anew_with_each_call() -> None:
    threads = DaemonThreads(1, "t")
    await threads.call(lambda: setattr(decimal.getcontext(), "prec", 3), timeout_s=10, what="it")
    assert await threads.call(lambda: decimal.getcontext().prec, timeout_s=10, what="it") != 3


async def test_a_thread_that_cannot_be_started_is_an_error_of_its_call_alone(monkeypatch) -> None:
    threads = DaemonThreads(1, "t")
    release = threading.Event()
    hung = asyncio.ensure_future(threads.call(release.wait, timeout_s=0.2, what="it"))
    await asyncio.sleep(0.05)
    behind = [asyncio.ensure_future(threads.call(lambda: 5, timeout_s=10, what="it")) for _ in range(2)]
    start, refusals = threading.Thread.start, ["can't start new thread"]

    def refuses_once(thread: threading.Thread) -> None:
        if refusals:
            raise RuntimeError(refusals.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuses_once)
    with pytest.raises(DeadlineError):
        await hung
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await behind[0]
    assert await behind[1] == 5
    release.set()
    assert threads._busy == 0


async def test_a_fork_has_threads_of_its_own() -> None:
    threads = DaemonThreads(1, "t")
    assert await threads.call(lambda: 5, timeout_s=10, what="it") == 5
    assert len(threads._idle) == 1
    pid = os.fork()
    if pid == 0:
        asyncio.events._set_running_loop(None)
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        os._exit(loop.run_until_complete(threads.call(lambda: 7, timeout_s=5, what="it")))
    assert os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1]) == 7


@pytest.mark.timeout(60)
def test_the_garbage_collector_may_end_a_caller_in_the_midst_of_another_call() -> None:
    """Then the lock is taken, by the same thread."""
    threads = DaemonThreads(1, "t")
    release = threading.Event()

    async def leave() -> None:
        asyncio.get_running_loop().call_later(0.1, asyncio.get_running_loop().stop)
        await threads.call(release.wait, timeout_s=600, what="it")

    loop = asyncio.new_event_loop()
    task = loop.create_task(leave())
    loop.run_forever()
    loop.close()
    release.set()
    while threads._busy:
        time.sleep(0.01)
    time.sleep(0.1)  # the thread lets go of the call
    with threads._lock:
        del task
        gc.collect()
        assert threads._left.qsize() == 1
    assert asyncio.run(threads.call(lambda: 5, timeout_s=10, what="it")) == 5
    assert threads._left.empty()


class Held:
    """Something that can be referred to weakly."""
