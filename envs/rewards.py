"""Finds the reward function behind `--reward.remote_url`, and runs a user's file off the event loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import ConfigError, DeadlineError, RewardError, TurnGymError
from ..registry import nearest
from .daemon_threads import DaemonThreads
from .loop_thread import LoopThread
from .openrlhf.stand_in import load_file
from .reward import Reward, RewardFunction, parse_rewards

MAX_THREADS = 64


@cache
def load_reward(remote_url: str, *, timeout_s: float = 180.0) -> RewardFunction:
    """Return the reward function behind `--reward.remote_url`, one per process.

    Raises:
        ConfigError: It is neither a Python file with `reward_func` nor a list of HTTP URLs.
    """
    parts = [part.strip() for part in remote_url.split(",") if part.strip()]
    if parts and all(part.startswith(("http://", "https://")) for part in parts):
        from .reward_http import HttpReward

        return HttpReward(parts, timeout_s=timeout_s)
    if len(parts) != 1 or not parts[0].endswith(".py"):
        raise ConfigError(f"a reward function is one .py file or http(s) URLs, got {remote_url!r}")
    return FileReward(parts[0], timeout_s=timeout_s)


class FileReward:
    """`reward_func(queries, prompts, labels)` of a Python file, run off the caller's event loop.

    Plain functions run in threads; coroutines on one loop of their own, so that one that blocks by
    mistake holds up no generation.
    """

    def __init__(self, path: str, timeout_s: float) -> None:
        self._source = str(Path(path).expanduser().resolve())
        self._timeout_s = timeout_s
        module = load_file(path)
        function = getattr(module, "reward_func", None)
        if not callable(function):
            suggestion = nearest("reward_func", [n for n, v in vars(module).items() if inspect.isfunction(v)])
            raise ConfigError(f"{self._source!r} defines no reward_func(queries, prompts, labels).{suggestion}")
        self._function: Callable[..., Any] = function
        self._threads = DaemonThreads(MAX_THREADS, "turngym-reward")
        self._loop = LoopThread("turngym-reward-loop")

    async def __call__(self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[Reward]:
        """Call the function and check what it returns."""
        arguments = (list(queries), list(prompts), list(labels))
        what = f"reward_func of {self._source!r}"
        try:
            if inspect.iscoroutinefunction(self._function):
                returned = await self._await(self._function(*arguments), what)
            else:
                returned = await self._threads.call(self._function, *arguments, timeout_s=self._timeout_s, what=what)
                if inspect.isawaitable(returned):  # functools.partial and decorators hide a coroutine function
                    returned = await self._await(returned, what)
        except TurnGymError:
            raise
        except Exception as error:
            raise RewardError(f"{what} raised {type(error).__name__}: {error}") from error
        return parse_rewards(returned, len(arguments[0]), self._source)

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
