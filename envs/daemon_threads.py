"""Threads for blocking functions that may hang: each call has a deadline, and none delays the process's exit.

A thread cannot be killed. One that outlives its deadline is given up and replaced, so that the calls
behind it go on. (`asyncio.to_thread` would let hung calls fill its pool, and wait for them at exit.)
"""

import asyncio
import contextvars
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import DeadlineError

IDLE_S = 10.0  # for which a thread without a call waits for its next one, before it ends


class DaemonThreads:
    """Runs at most `max_threads` functions at once; the others wait their turn.

    Threads go from call to call; context variables begin anew with each.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._left: SimpleQueue[_Call] = SimpleQueue()  # by callers that the garbage collector ended
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: OrderedDict[_Call, None] = OrderedDict()  # leaving from the middle is O(1)
        self._idle: list[_Inbox] = []
        self._busy = 0

    async def call(self, function: Callable[..., Any], *args: Any, timeout_s: float, what: str) -> Any:
        """Run `function(*args)` in a thread and return what it returns, or raise what it raises.

        Raises:
            DeadlineError: It ran longer than `timeout_s`, not counting the wait for a thread. `what` names it.
        """
        call = _Call(function, args, asyncio.get_running_loop())
        del function, args  # the thread lets go of them within the call
        deadline: asyncio.Timeout | None = None
        leave: Callable[[_Call], None] = self._give_up
        try:
            if (turn := self._begin(call)) is not None:
                await turn
            # `wait_for` would swallow a cancellation that comes together with the result.
            async with asyncio.timeout(timeout_s) as deadline:
                return await call.result
        except TimeoutError as error:
            if deadline is None or not deadline.expired():
                raise  # the function's own
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s") from error
        except GeneratorExit:  # its loop is gone; a garbage collection may say so while this thread holds the lock
            leave = self._left.put
            raise
        finally:
            leave(call)

    def _begin(self, call: "_Call") -> "asyncio.Future[None] | None":
        """Hand a call to a thread; where it has to wait for one, return what tells its turn."""
        if self._pid != os.getpid():
            self._reset()  # a fork has left the threads behind
        with suppress(Empty):
            while True:
                self._give_up(self._left.get_nowait())
        turn: asyncio.Future[None] = call.loop.create_future()
        with self._lock:
            if self._busy == self._max_threads:
                call.turn = turn
                self._waiting[call] = None
                return turn
            inbox = self._admit(call)
        self._hand_over(call, inbox)
        return None

    def _admit(self, call: "_Call") -> "_Inbox | None":
        """Count a call as running, and return whose it is, if a thread is there; the lock is held."""
        self._busy += 1
        call.holds_slot = True
        return self._idle.pop() if self._idle else None

    def _hand_over(self, call: "_Call", inbox: "_Inbox | None") -> None:
        if inbox is None:
            inbox = SimpleQueue()
            try:
                threading.Thread(target=self._work, args=(inbox,), name=self._name, daemon=True).start()
            except RuntimeError as error:  # the machine has no more of them
                call.settle(call.result if call.turn is None else call.turn, [], error)
                return
        inbox.put(call)

    def _work(self, inbox: "_Inbox") -> None:
        while (call := self._taken(inbox)) is not None:
            while call is not None:
                call = self._run(call, inbox)

    def _run(self, call: "_Call", inbox: "_Inbox") -> "_Call | None":
        """Run a call and return the one whose turn it is then."""
        result, error = call.run()
        with self._lock:
            was_given_up = not call.holds_slot  # then another thread has taken this one's place
            call.holds_slot = False
            following = None if was_given_up else self._next()
            if following is not None:
                following.holds_slot = True
            elif not was_given_up:
                self._busy -= 1
                self._idle.append(inbox)
        if was_given_up:
            inbox.put(None)
        call.settle(call.result, result, error)
        return following

    def _taken(self, inbox: "_Inbox") -> "_Call | None":
        """Wait for a thread's next call; None where it has been idle for long."""
        try:
            return inbox.get(timeout=IDLE_S)
        except Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    return None
            return inbox.get()  # it was chosen in this very moment

    def _next(self) -> "_Call | None":
        """Return the call whose turn it is; the lock is held."""
        return self._waiting.popitem(last=False)[0] if self._waiting else None

    def _give_up(self, call: "_Call") -> None:
        """Stop counting a call that its caller no longer waits for."""
        with self._lock:
            self._waiting.pop(call, None)
            if not call.holds_slot:
                return
            call.holds_slot = False
            self._busy -= 1
            following = self._next()
            inbox = None if following is None else self._admit(following)
        if following is not None:
            self._hand_over(following, inbox)


class _Call:
    """A function on its way through a thread."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.turn: asyncio.Future[None] | None = None  # done when it begins; None where it had not to wait
        self.result: asyncio.Future[Any] = loop.create_future()
        self.holds_slot = False
        self._function = function
        self._args = args

    def run(self) -> tuple[list[Any], Exception | None]:
        """Call the function, in its thread; return its result, which `settle` takes out, or what it raised."""
        if self.turn is not None:
            self.settle(self.turn, [None], None)
        function, args = self._function, self._args
        del self._function, self._args
        try:
            return [contextvars.Context().run(function, *args)], None
        except Exception as raised:
            # A future cannot carry StopIteration.
            return [], RuntimeError(f"raised {raised!r}") if isinstance(raised, StopIteration) else raised
        except BaseException as raised:
            return [], RuntimeError(f"raised {raised!r}")  # sys.exit() there must not stop the caller's loop
        finally:
            del function, args  # here, while its deadline holds: destructors may be slow

    def settle(self, future: "asyncio.Future[Any]", result: list[Any], error: Exception | None) -> None:
        """Set a future from the thread, unless nobody waits."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(_set, future, result, error)


_Inbox = SimpleQueue[_Call | None]  # of a thread; None ends it


def _set(future: "asyncio.Future[Any]", result: list[Any], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result.pop())  # the thread keeps nothing of it
    else:
        future.set_exception(error)
