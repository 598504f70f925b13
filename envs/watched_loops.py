"""Event loops on threads of their own for users' coroutines, watched: one that blocks holds up no other for long.

Many coroutines share one loop. While one of them blocks it, later ones go to another loop, and so do those that have
not begun. When the one that blocks is given up, so is its thread, which cannot be ended, and with it all that had begun
on its loop, which cannot be moved: they fail at once, and are told whose fault it was.
"""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import EnvError, LoopBlockedError
from .loop_thread import LoopThread
from .thread_stack import ThreadStack

_log = logging.getLogger(__name__)

BEAT_S = 0.1
# Looks are counted, and no seconds: what keeps the watch itself from looking (a long garbage collection, an extension
# that holds the interpreter) is no coroutine's doing.
BLOCKED_LOOKS = 10  # so often without an answer of the loop while one and the same task runs: it blocks
GIVEN_UP_LOOKS = 300  # then those that wait for it to go on wait no longer
GRACE_S = 5.0  # for a coroutine that is cancelled to end
_REMEDY = "it must await there, or be a plain function (`def`), which runs in a thread of its own"

_current: contextvars.ContextVar["_Call | None"] = contextvars.ContextVar("turngym-call", default=None)


class WatchedLoops:
    """Runs coroutines on one loop; on further ones while that is blocked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._loops: list[_Loop] = []
        self._watch: threading.Thread | None = None

    async def call(self, function: Callable[[], Awaitable[Any]], *, what: str) -> Any:
        """Return what a coroutine function returns, or raise what it raises; cancelled, end it first.

        Raises:
            LoopBlockedError: Another call blocked the loop that this one ran on; `what` names them.
            EnvError: It cancelled itself.
            asyncio.CancelledError: The caller cancelled. Notes tell where it blocked its loop, if it did.
        """
        call = _Call(function, what)
        self._place(call)
        ended = asyncio.wrap_future(call.ended)
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as cancelled:
            with self._lock:
                call.cancel()
            await asyncio.wait([ended], timeout=GRACE_S)
            if call.complaint is not None:
                cancelled.add_note(call.complaint)
            raise
        if call.error is not None:
            raise call.error
        return call.value

    def close(self) -> None:
        """End the loops and what runs on them."""
        with self._lock:
            loops, self._loops = self._loops, []
            for loop in loops:
                for call in list(loop.calls):
                    call.settle(error=EnvError(f"{call.what} was running when its event loop was closed"))
        for loop in loops:
            loop.thread.close()

    def look(self) -> None:
        """See which loops answer, and free those that wait for one that does not."""
        with self._lock:
            for loop in list(self._loops):
                loop.look()
                if loop.misses >= BLOCKED_LOOKS and not loop.is_blocked:
                    self._leave(loop)
                if loop.is_blocked:
                    self._free(loop)

    def _place(self, call: "_Call") -> None:
        """Put a call on the first loop that goes, and watch it."""
        with self._lock:
            loop = next((each for each in self._loops if not each.is_blocked), None)
            if loop is None:
                loop = _Loop(self._name, self._lock)
                self._loops.append(loop)
            loop.take(call)
            if self._watch is None:
                self._watch = threading.Thread(target=self._keep_looking, name=f"{self._name}-watch", daemon=True)
                self._watch.start()

    def _keep_looking(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self._lock:
                if not any(loop.calls for loop in self._loops):
                    self._watch = None
                    return
                self.look()

    def _leave(self, loop: "_Loop") -> None:
        """Say who blocks a loop, and let what has not begun begin elsewhere."""
        loop.is_blocked = True
        stack = loop.stack()
        waiting = [call for call in loop.calls if not call.has_begun]
        others = len(loop.calls) - len(waiting) - (loop.culprit in loop.calls)
        _log.warning(
            "%s blocks the event loop that it shares with %d others; %s. Later ones run on another. It stands at:\n%s",
            loop.culprit_name,
            others,
            _REMEDY,
            stack,
        )
        for call in waiting:
            loop.calls.remove(call)
            self._place(call)

    def _free(self, loop: "_Loop") -> None:
        """Settle what nobody should wait for any longer."""
        place = loop.stack().place
        culprit, is_late = loop.culprit, loop.misses >= GIVEN_UP_LOOKS
        told = f"the event loop was blocked by {loop.culprit_name} at {place}; {_REMEDY}"
        given_up = [call for call in loop.calls if call.is_cancelled or (is_late and call is not culprit)]
        for call in given_up:
            call.complaint = f"it blocked its event loop at {place}: {_REMEDY}" if call is culprit else told
            call.settle(error=LoopBlockedError(told))
            call.cancel()
        if culprit in given_up or (culprit is None and given_up):
            _log.warning("the thread of %s is given up; it stands at %s", loop.culprit_name, place)
            self._loops.remove(loop)
            for call in list(loop.calls):
                call.settle(error=LoopBlockedError(told))
            loop.thread.close(timeout_s=0)


class _Loop:
    """One loop, its thread and what runs there."""

    def __init__(self, name: str, lock: threading.RLock) -> None:
        self.thread = LoopThread(f"{name}-loop")
        self.calls: list[_Call] = []
        self.is_blocked = False
        self.misses = 0
        self.culprit: _Call | None = None
        self.lock = lock
        self._has_answered = True
        self._running: asyncio.Task[Any] | None = None  # at the last look
        self._tasks: set[asyncio.Task[None]] = set()
        self._call_of: WeakKeyDictionary[asyncio.Task[Any], _Call] = WeakKeyDictionary()
        self.thread.loop.set_task_factory(self._task)

    @property
    def culprit_name(self) -> str:
        return "something" if self.culprit is None else self.culprit.what

    def take(self, call: "_Call") -> None:
        self.calls.append(call)
        call.loop = self
        self.thread.loop.call_soon_threadsafe(self._begin, call)

    def look(self) -> None:
        """Count for how long one and the same task has kept the loop from answering."""
        if self._has_answered:
            self.misses, self.is_blocked, self._has_answered = 0, False, False
            self.thread.loop.call_soon_threadsafe(self._answer)
            return
        running = asyncio.current_task(self.thread.loop)
        self.misses = self.misses + 1 if running is self._running else 0
        self._running = running
        self.culprit = None if running is None else self._call_of.get(running)

    def stack(self) -> ThreadStack:
        return ThreadStack.of(self.thread.ident)

    def _begin(self, call: "_Call") -> None:
        _current.set(call)  # in this callback's own context, which its tasks inherit
        task = self.thread.loop.create_task(call.run(self))
        task.add_done_callback(self._tasks.discard)
        self._tasks.add(task)  # the loop itself holds it weakly

    def _answer(self) -> None:
        self._has_answered = True

    def _task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,  # Any: what newer versions of Python pass
    ) -> asyncio.Task[Any]:
        """Make a task that is known to be a call's: tasks do not tell their context."""
        context = options.get("context")
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        call = _current.get() if context is None else context.get(_current)
        if call is not None:
            self._call_of[task] = call
        return task


class _Call:
    """One coroutine; its state changes under the loops' lock."""

    def __init__(self, function: Callable[[], Awaitable[Any]], what: str) -> None:
        self.what = what
        self.loop: _Loop | None = None
        self.has_begun = self.is_cancelled = False
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.value: Any = None
        self.error: Exception | None = None
        self.complaint: str | None = None
        self._function = function
        self._task: asyncio.Task[Any] | None = None

    async def run(self, loop: _Loop) -> None:
        with loop.lock:
            if self not in loop.calls:
                return  # it runs elsewhere by now, or nobody waits for it
            self.has_begun, self._task = True, asyncio.current_task()
        value: Any = None
        error: Exception | None = None
        try:
            value = await self._function()
        except asyncio.CancelledError:
            error = EnvError(f"{self.what} cancelled itself")
        except Exception as raised:
            error = raised
        except BaseException as raised:  # sys.exit() there must not end the loop
            error = RuntimeError(f"raised {raised!r}")
        self.settle(value, error)

    def cancel(self) -> None:
        """End it where it can be ended; what never began has ended."""
        self.is_cancelled = True
        if not self.has_begun:
            self.settle()
        elif self.loop is not None and self._task is not None:
            self.loop.thread.loop.call_soon_threadsafe(self._task.cancel)

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        """Note how it ended; the first word counts."""
        assert self.loop is not None
        with self.loop.lock:
            if self in self.loop.calls:
                self.loop.calls.remove(self)
                self.value, self.error = value, error
                self.ended.set_result(None)
