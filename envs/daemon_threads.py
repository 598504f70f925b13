"""Threads for blocking functions that may hang: each call has a deadline, and none delays the process's exit.

A thread cannot be killed. One that outlives its deadline is given up and replaced, so that the calls
behind it go on. (`asyncio.to_thread` would let hung calls fill its pool, and wait for them at exit.)
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import DeadlineError


class DaemonThreads:
    """Runs at most `max_threads` functions at once; the others wait their turn."""

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[_Call] = deque()
        self._busy = 0

    async def call(self, function: Callable[..., Any], *args: Any, timeout_s: float, what: str) -> Any:
        """Run `function(*args)` in a thread and return what it returns, or raise what it raises.

        Raises:
            DeadlineError: It ran longer than `timeout_s`, not counting the wait for a thread. `what` names it.
        """
        loop = asyncio.get_running_loop()
        call = _Call(function, args, loop, loop.create_future(), loop.create_future())
        with self._lock:
            self._waiting.append(call)
        self._start_some()
        deadline: asyncio.Timeout | None = None
        try:
            await call.started
            # `wait_for` would swallow a cancellation that comes together with the result.
            async with asyncio.timeout(timeout_s) as deadline:
                return await call.result
        except TimeoutError as error:
            if deadline is None or not deadline.expired():
                raise  # the function's own
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s") from error
        finally:
            self._give_up(call)

    def _start_some(self) -> None:
        with self._lock:
            while self._waiting and self._busy < self._max_threads:
                call = self._waiting.popleft()
                call.holds_slot = True
                self._busy += 1
                threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()

    def _work(self, call: "_Call") -> None:
        call.report(call.started, None, None)
        result: Any = None
        error: Exception | None = None
        try:
            result = call.function(*call.args)
        except Exception as raised:
            # A future cannot carry StopIteration.
            error = RuntimeError(f"raised {raised!r}") if isinstance(raised, StopIteration) else raised
        except BaseException as raised:
            error = RuntimeError(f"raised {raised!r}")  # sys.exit() there must not stop the caller's loop
        call.report(call.result, result, error)
        self._free(call)

    def _give_up(self, call: "_Call") -> None:
        """Stop counting a call that its caller no longer waits for."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
        self._free(call)

    def _free(self, call: "_Call") -> None:
        with self._lock:
            self._busy -= call.holds_slot
            call.holds_slot = False
        self._start_some()


class _Call:
    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        started: "asyncio.Future[None]",
        result: "asyncio.Future[Any]",
    ) -> None:
        self.function = function
        self.args = args
        self.started = started
        self.result = result
        self.holds_slot = False
        self._loop = loop

    def report(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        """Set a future from the worker's thread, unless its loop is gone or nobody waits."""

        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle)
