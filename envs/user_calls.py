"""Calls a user's functions off the caller's event loop, under a deadline."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import DeadlineError, RewardError, TurnGymError
from .daemon_threads import DaemonThreads
from .loop_thread import LoopThread

MAX_THREADS = 64


class UserCalls:
    """Plain functions run in threads; coroutines on one loop of their own.

    So one that blocks by mistake holds up no generation.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = DaemonThreads(MAX_THREADS, "turngym-reward")
        self._loop = LoopThread("turngym-reward-loop")

    async def call(self, function: Callable[..., Any], *args: Any, what: str, **kwargs: Any) -> Any:
        """Call a function and return what it returned; `what` names it.

        Raises:
            RewardError: It raised something.
            DeadlineError: It took too long.
        """
        call = functools.partial(function, *args, **kwargs)
        try:
            if inspect.iscoroutinefunction(function):
                return await self._await(call(), what)
            returned = await self._threads.call(call, timeout_s=self._timeout_s, what=what)
            # functools.partial and decorators hide a coroutine function
            return await self._await(returned, what) if inspect.isawaitable(returned) else returned
        except TurnGymError:
            raise
        except Exception as error:
            raise RewardError(f"{what} raised {type(error).__name__}: {error}") from error

    async def _await(self, awaitable: Awaitable[Any], what: str) -> Any:
        async def wait() -> Any:
            return await awaitable

        future = asyncio.wrap_future(self._loop.submit(wait()))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await future
        except TimeoutError as error:
            if not future.cancelled():
                raise  # the function's own
            raise DeadlineError(f"{what} took longer than its deadline of {self._timeout_s:g} s") from error
