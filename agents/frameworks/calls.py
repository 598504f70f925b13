"""Runs users' functions beside the event loop that serves them, so that one that blocks holds up no answer."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ...envs.daemon_threads import DaemonThreads
from ...envs.watched_loops import WatchedLoops

_FOREVER_S = 1e9  # who waits for the call has a deadline of his own


class Calls:
    """Runs coroutine functions on loops of their own, and plain ones in threads.

    An agent that blocks on its loop (a client that is not asynchronous, say) waits for a server that goes on: on the
    server's own loop it would wait for itself.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._threads = DaemonThreads(max_threads, name)
        self._loops = WatchedLoops(name)

    async def call(self, function: Callable[..., Any], *args: Any, what: str = "an agent") -> Any:
        """Return what a function returns; cancelled, end a coroutine first. A thread cannot be ended, and is left.

        Raises:
            LoopBlockedError: Another coroutine blocked the loop that it ran on; `what` names each in messages.
        """
        if inspect.iscoroutinefunction(function):
            return await self._loops.call(functools.partial(function, *args), what=what)
        returned = await self._threads.call(function, *args, timeout_s=_FOREVER_S, what=what)
        if inspect.isawaitable(returned):  # functools.partial and decorators hide a coroutine function
            return await self._loops.call(lambda: returned, what=what)
        return returned

    def close(self) -> None:
        """End the loops."""
        self._loops.close()
