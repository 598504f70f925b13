"""Calls a user's functions off the caller's event loop, under a deadline."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import DeadlineError, LoopBlockedError, RewardError, TurnGymError
from .daemon_threads import DaemonThreads
from .watched_loops import WatchedLoops

MAX_THREADS = 64


class UserCalls:
    """Plain functions run in threads; coroutines on loops of their own.

    So one that blocks by mistake holds up no generation.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = DaemonThreads(MAX_THREADS, "turngym-reward")
        self._loops = WatchedLoops("turngym-reward")

    async def call(self, function: Callable[..., Any], *args: Any, what: str, **kwargs: Any) -> Any:
        """Call a function and return what it returned; `what` names it.

        Raises:
            RewardError: It raised something, or could not go on since another one blocked the loop.
            DeadlineError: It took too long.
        """
        call = functools.partial(function, *args, **kwargs)
        try:
            if inspect.iscoroutinefunction(function):
                return await self._await(call, what)
            returned = await self._threads.call(call, timeout_s=self._timeout_s, what=what)
            # functools.partial and decorators hide a coroutine function
            return await self._await(lambda: returned, what) if inspect.isawaitable(returned) else returned
        except LoopBlockedError as error:
            raise RewardError(f"{what} could not go on: {error}") from error
        except TurnGymError:
            raise
        except Exception as error:
            raise RewardError(f"{what} raised {type(error).__name__}: {error}") from error

    async def _await(self, function: Callable[[], Awaitable[Any]], what: str) -> Any:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return await self._loops.call(function, what=what)
        except TimeoutError as error:
            if not deadline.expired():
                raise  # the function's own
            notes = "".join(f"; {note}" for note in getattr(error.__cause__, "__notes__", ()))
            raise DeadlineError(f"{what} took longer than its deadline of {self._timeout_s:g} s{notes}") from error
