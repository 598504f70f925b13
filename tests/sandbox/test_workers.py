import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from turngym.errors import DeadlineError, WorkerError
from turngym.sandbox.workers import WorkerPool

FUNCTIONS = "worker_functions:act"


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    pool = WorkerPool(FUNCTIONS, num_workers=2, memory_bytes=256 << 20)
    before = descendants()
    yield pool
    pool.close()
    assert descendants() <= before


def descendants() -> set[psutil.Process]:
    return {p for p in psutil.Process().children(recursive=True) if is_running(p.pid)}


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.05)


async def test_results_come_back_and_workers_are_kept(pool: WorkerPool) -> None:
    assert await pool.run("echo", {"a": [1, 2]}, timeout_s=30) == {"a": [1, 2]}
    pids = {await pool.run("pid", timeout_s=30) for _ in range(8)}
    assert len(pids) <= 2
    assert os.getpid() not in pids


@pytest.mark.slow
async def test_calls_beyond_the_workers_wait_and_the_wait_is_not_timed(pool: WorkerPool) -> None:
    before = descendants()
    slept = await asyncio.gather(*(pool.run("sleep", 0.4, timeout_s=2) for _ in range(12)))
    assert slept == [0.4] * 12  # the last two start after 2 s in line
    assert len(descendants() - before) == 3  # the fork server and two workers


@pytest.mark.slow
async def test_a_deadline_fails_its_call_only(pool: WorkerPool) -> None:
    results = await asyncio.gather(
        pool.run("spin", timeout_s=0.5),
        *(pool.run("echo", number, timeout_s=30) for number in range(10)),
        pool.run("spin", timeout_s=0.5),
        return_exceptions=True,
    )
    assert isinstance(results[0], DeadlineError)
    assert isinstance(results[-1], DeadlineError)
    assert "0.5 s" in str(results[0])
    assert results[1:-1] == list(range(10))


@pytest.mark.slow
async def test_a_deadline_kills_the_process_group(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError):
        await pool.run("spin_with_child", str(tmp_path / "pids"), timeout_s=2)
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "how"),
    [
        (("exit", 3), "exited with status 3"),
        (("segfault",), "killed by SIGSEGV"),
        (("allocate", 1 << 31), "ran out of the 256 MiB"),
    ],
)
async def test_a_dead_worker_is_named_and_replaced(pool: WorkerPool, call: tuple[object, ...], how: str) -> None:
    with pytest.raises(WorkerError, match=how):
        await pool.run(*call, timeout_s=30)
    assert await pool.run("allocate", 1 << 20, timeout_s=30) == 1 << 20


async def test_exceptions_come_back_as_themselves(pool: WorkerPool) -> None:
    with pytest.raises(ValueError, match="not a number") as caught:
        await pool.run("raise_value_error", timeout_s=30)
    assert "_raise_value_error" in str(caught.value.__cause__)
    with pytest.raises(WorkerError, match="PickyError: 1 and 2"):
        await pool.run("raise_picky", timeout_s=30)
    with pytest.raises(Exception, match="pickle"):
        await pool.run("echo", lambda: None, timeout_s=30)


async def test_a_worker_that_prints_disturbs_nothing(pool: WorkerPool) -> None:
    assert await pool.run("print_noise", timeout_s=30) == "quiet"


async def test_cancelling_kills_the_worker(pool: WorkerPool, tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    call = asyncio.create_task(pool.run("spin_with_child", str(marker), timeout_s=300))
    while not marker.exists() or not marker.read_text():
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    wait_until_gone([int(pid) for pid in marker.read_text().split()])
    assert await pool.run("echo", 1, timeout_s=30) == 1


@pytest.mark.slow
async def test_cancelling_a_waiting_call_leaves_the_others(pool: WorkerPool) -> None:
    running = [asyncio.create_task(pool.run("sleep", 0.5, timeout_s=30)) for _ in range(2)]
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(pool.run("spin", timeout_s=300))
    await asyncio.sleep(0.1)
    waiting.cancel()
    assert await asyncio.gather(*running, pool.run("echo", 1, timeout_s=30)) == [0.5, 0.5, 1]


def test_one_pool_serves_several_threads_and_loops(pool: WorkerPool) -> None:
    results: list[object] = []

    def work(number: int) -> None:
        results.append(asyncio.run(pool.run("echo", number, timeout_s=30)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(6))  # type: ignore[type-var]


@pytest.mark.slow
async def test_closing_fails_what_runs_and_waits(pool: WorkerPool) -> None:
    before = descendants()
    calls = [asyncio.create_task(pool.run("spin", timeout_s=300)) for _ in range(4)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(pool.close)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [WorkerError] * 4
    assert descendants() <= before
    with pytest.raises(WorkerError, match="closed"):
        await pool.run("echo", 1, timeout_s=30)


async def test_a_lost_fork_server_is_replaced(pool: WorkerPool) -> None:
    worker_pid = await pool.run("pid", timeout_s=30)
    server = psutil.Process(worker_pid).parent()
    assert server is not None
    server.kill()
    wait_until_gone([worker_pid])
    results = await asyncio.gather(*(pool.run("echo", 7, timeout_s=30) for _ in range(2)), return_exceptions=True)
    assert all(result == 7 or isinstance(result, WorkerError) for result in results)
    assert await pool.run("echo", 8, timeout_s=30) == 8


async def test_a_function_that_cannot_be_imported_is_a_typed_failure() -> None:
    missing = pytest.raises(WorkerError, match="No module named 'no_such_module'")
    with WorkerPool("no_such_module:f", num_workers=1) as pool, missing:
        await pool.run(timeout_s=30)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_a_killed_parent(how: signal.Signals, tmp_path: Path) -> None:
    marker = tmp_path / "pids"
    program = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from turngym.sandbox.workers import WorkerPool
pool = WorkerPool({FUNCTIONS!r}, num_workers=1)
asyncio.run(pool.run("spin_with_child", {str(marker)!r}, timeout_s=300))
"""
    parent = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 60
    while not marker.exists() or len(marker.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
    assert len(pids) == 3  # the fork server, its worker, and the worker's child
    parent.send_signal(how)
    parent.wait(30)
    wait_until_gone(pids)
