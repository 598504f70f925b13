"""A pool of killable worker processes that run one function, each call under a hard deadline.

A deadline or a cancellation kills the worker's whole process group and a fresh one takes over; no
signal handler or alarm is ever set in the parent. One pool serves any number of threads and event
loops of the process that made it.
"""

import asyncio
import os
import queue
import threading
from concurrent.futures import Future
from typing import Any

from ..errors import DeadlineError, WorkerError
from . import worker_main
from .fork_server import Forker, Worker

_CALLS_PER_WORKER = 1000  # then a fresh one: caches and leaks of long-lived processes stay bounded
_CLOSE_TIMEOUT_S = 30.0


class _Call:
    """One call on its way through the pool."""

    def __init__(self, request: bytes, timeout_s: float) -> None:
        self.request = request
        self.timeout_s = timeout_s
        self.future: Future[Any] = Future()
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self.is_cancelled = False

    def assign(self, worker: Worker | None) -> None:
        """Say which worker runs it, None once it has answered."""
        with self._lock:
            self._worker = worker
            if worker and self.is_cancelled:
                worker.kill()

    def cancel(self) -> None:
        """Kill the worker that runs it, if one does."""
        with self._lock:
            self.is_cancelled = True
            if self._worker:
                self._worker.kill()


class WorkerPool:
    """Runs "module:function" in at most `num_workers` processes, started when first needed.

    Args:
        function: What to run, importable in a fresh interpreter; arguments, results and exceptions
            are pickled.
        num_workers: Most processes at once; further calls wait in line.
        memory_bytes: Address space a worker may add to what the imports took.

    A pool belongs to the process that made it. `close` it (or use `with`); if the process dies
    without that, however it dies, its workers die with it.
    """

    def __init__(self, function: str, *, num_workers: int, memory_bytes: int = 1 << 30) -> None:
        self._function = function
        self._num_workers = num_workers
        self._memory_bytes = memory_bytes
        self._owner_pid = os.getpid()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # held for moments only: event loops take it
        self._forker = Forker(function, memory_bytes)  # blocks while a server starts or forks: worker threads only
        self._threads: list[threading.Thread] = []
        self._running: set[_Call] = set()
        self._is_closed = False

    async def run(self, *args: object, timeout_s: float) -> Any:  # Any: whatever the function returns
        """Call the function in a worker and return its result; cancelling kills the worker.

        Args:
            *args: Picklable arguments.
            timeout_s: Deadline of the call itself; waiting for a free worker does not count.

        Raises:
            DeadlineError: The function took longer; its worker was killed.
            WorkerError: The worker died or ran out of memory, or the pool is closed.
            Exception: Whatever the function raised, its traceback as cause.
        """
        call = _Call(worker_main.pack(args), timeout_s)
        self._submit(call)
        try:
            return await asyncio.wrap_future(call.future)
        except asyncio.CancelledError:
            call.cancel()
            raise

    def close(self) -> None:
        """Fail what is waiting or running with `WorkerError` and leave no process behind."""
        if self._owner_pid != os.getpid():
            return  # a fork of the owner: threads and processes are not its own
        with self._lock:
            self._is_closed = True
            running, threads = list(self._running), self._threads
        for call in running:
            call.cancel()
        for _ in threads:
            self._calls.put(None)
        for thread in threads:
            thread.join(_CLOSE_TIMEOUT_S)
        self._forker.close()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, call: _Call) -> None:
        if self._owner_pid != os.getpid():
            raise WorkerError(f"the pool for {self._function!r} belongs to another process; make one in this process")
        with self._lock:
            if self._is_closed:
                raise WorkerError(f"the pool for {self._function!r} is closed")
            self._calls.put(call)
            if len(self._threads) < self._num_workers:
                name = f"{self._function}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self) -> None:
        """Hand calls to one worker after another; each thread owns at most one live worker."""
        worker: Worker | None = None
        try:
            while call := self._calls.get():
                if call.future.set_running_or_notify_cancel():
                    worker = self._perform(call, worker)
        finally:
            if worker:
                worker.end()

    def _perform(self, call: _Call, worker: Worker | None) -> Worker | None:
        """Run one call and return the worker if it can take another."""
        with self._lock:
            self._running.add(call)
        try:
            if self._is_closed:
                raise WorkerError("closed")
            worker = worker or self._forker.fork()
            call.assign(worker)
            kind, content = worker.call(call.request, call.timeout_s)
            call.assign(None)
        except Exception as error:  # becomes the failure of this call; the thread lives on
            call.assign(None)
            how = worker.end() if worker else ""
            call.future.set_exception(self._failure(call, error, how))
            return None
        finally:
            with self._lock:
                self._running.discard(call)
        if kind == "returned":
            call.future.set_result(content)
        elif kind == "raised":
            call.future.set_exception(self._remote_error(*content))
        else:
            call.future.set_exception(
                WorkerError(f"{self._function!r} ran out of the {self._memory_bytes >> 20} MiB that a worker may take")
            )
        if kind == "out of memory" or call.is_cancelled or worker.num_calls >= _CALLS_PER_WORKER:
            worker.end()
            return None
        return worker

    def _failure(self, call: _Call, error: Exception, how: str) -> Exception:
        if isinstance(error, DeadlineError):
            return DeadlineError(f"{self._function!r} did not answer within {call.timeout_s:g} s and was killed")
        if self._is_closed:
            return WorkerError(f"the pool for {self._function!r} was closed before the call ended")
        if isinstance(error, EOFError | OSError):
            return WorkerError(f"a worker running {self._function!r} {how}")
        return error

    def _remote_error(self, error: Exception | None, text: str) -> Exception:
        cause = WorkerError(f"raised in a worker running {self._function!r}:\n{text}")
        if error is None:
            return cause
        error.__cause__ = cause
        return error
