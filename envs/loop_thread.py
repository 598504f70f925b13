"""An event loop on a thread of its own, for coroutines that must not share the caller's loop."""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import DeadlineError
from ..sandbox.registration import close_shared

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LoopThread:
    """Starts its loop when first used; `close` cancels what still runs and ends the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float, what: str) -> T:
        """Run a coroutine to its end, from a thread that may block.

        Raises:
            DeadlineError: It took longer than `timeout_s`; it has been cancelled. `what` names it.
        """
        future = self.submit(coroutine)
        done, _ = concurrent.futures.wait([future], timeout=timeout_s)
        if not done:
            future.cancel()
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s")
        return future.result()

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what runs and end the thread; a thread stuck in blocking code is left behind as a daemon."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_s)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, which runs; started now if it did not."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

    @property
    def ident(self) -> int | None:
        """The thread's, as `threading.get_ident` tells it; None where it does not run."""
        return None if self._thread is None else self._thread.ident


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        _run(loop)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        try:
            loop.run_until_complete(close_shared())  # nobody can use them without this loop
        finally:
            loop.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run until the loop is stopped: `sys.exit()` in a task ends that task alone."""
    while True:
        try:
            return loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as raised:
            _log.error("a task raised %r, which ends nothing but itself", raised)
