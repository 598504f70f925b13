"""Runs users' functions beside the event loop that serves them, so that one that blocks holds up no answer."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from ...envs.daemon_threads import DaemonThreads
from ...envs.loop_thread import LoopThread
from ...errors import EnvError

GRACE_S = 5.0
_FOREVER_S = 1e9  # who waits for the call has a deadline of his own


class Calls:
    """Runs coroutine functions on one loop of their own, and plain ones in threads.

    An agent that blocks on its loop (a client that is not asynchronous, say) waits for a server that goes on: on the
    server's own loop it would wait for itself.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._threads = DaemonThreads(max_threads, name)
        self._loop = LoopThread(f"{name}-loop")

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return what a function returns; cancelled, end a coroutine first. A thread cannot be ended, and is left."""
        if inspect.iscoroutinefunction(function):
            return await self._await(function, *args)
        returned = await self._threads.call(function, *args, timeout_s=_FOREVER_S, what="an agent")
        if inspect.isawaitable(returned):  # functools.partial and decorators hide a coroutine function
            return await self._await(_awaited, returned)
        return returned

    def close(self) -> None:
        """End the loop."""
        self._loop.close()

    async def _await(self, function: Callable[..., Any], *args: Any) -> Any:
        begun: list[asyncio.Task[Any]] = []

        async def body() -> Any:
            task = asyncio.current_task()
            assert task is not None
            begun.append(task)
            return await function(*args)

        caller = asyncio.current_task()
        future = self._loop.submit(body())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if caller is None or not caller.cancelling():
                raise EnvError("the agent cancelled itself") from None
            await self._ended(begun)
            raise

    async def _ended(self, begun: "list[asyncio.Task[Any]]") -> None:
        """Wait a moment for the end of what was cancelled; a loop that is blocked cannot end anything."""

        async def end() -> None:
            if begun:
                await asyncio.wait(begun, timeout=GRACE_S)

        await asyncio.wait([asyncio.ensure_future(asyncio.wrap_future(self._loop.submit(end())))], timeout=GRACE_S)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
