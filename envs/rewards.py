"""Reward functions: a user's Python file or HTTP servers, and what counts as a reward.

A failure is a `RewardError` (or a `DeadlineError`), never a reward of 0; a reward of 0.0 is a value.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import ConfigError, DeadlineError, RewardError, TurnGymError
from ..registry import nearest
from ..source_file import import_file
from .daemon_threads import DaemonThreads
from .loop_thread import LoopThread

MAX_THREADS = 64


@dataclass(frozen=True)
class Reward:
    """What one query is worth.

    Attributes:
        reward: Finite.
        score: 0 to 1, for filtering; the reward itself where the function gives no scores.
        extra_logs: Numbers of the function's own.
    """

    reward: float
    score: float
    extra_logs: dict[str, float] = field(default_factory=dict)


class RewardFunction(Protocol):
    """Scores a batch of finished texts."""

    async def __call__(self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[Reward]:
        """Return one `Reward` per query.

        Args:
            queries: Prompt and response as one text, special tokens kept.
            prompts: The prompts alone, each a prefix of its query.
            labels: The expected answers.

        Raises:
            RewardError: The function raised, or returned something that is no reward.
            DeadlineError: It gave no answer in time.
        """
        ...


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
        module = import_file(path)
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
            return await asyncio.wait_for(future, self._timeout_s)
        except TimeoutError as error:
            if not future.cancelled():
                raise  # the function's own
            raise DeadlineError(f"{what} took longer than its deadline of {self._timeout_s:g} s") from error


def parse_rewards(returned: Any, num_queries: int, source: str) -> list[Reward]:
    """Turn what a reward function returned into rewards, or raise `RewardError` naming `source`.

    Args:
        returned: A tensor, array or list of numbers, or a mapping with `rewards` and optionally
            `scores` and `extra_logs` (each a number or one per query).
        num_queries: How many were asked for.
        source: The file or URL, for messages.
    """
    if not isinstance(returned, Mapping):
        returned = {"rewards": returned}
    if "rewards" not in returned:
        raise RewardError(
            f"{source!r} returned a dict with the keys {sorted(map(str, returned))}; wanted 'rewards', "
            "and optionally 'scores' and 'extra_logs'"
        )
    rewards = _numbers(returned["rewards"], num_queries, "rewards", source)
    scores = returned.get("scores")
    scores = rewards if scores is None else _numbers(scores, num_queries, "scores", source)
    logs = returned.get("extra_logs")
    if logs is not None and not isinstance(logs, Mapping):
        raise RewardError(f"{source!r} returned extra_logs of type {type(logs).__name__}; wanted a dict of numbers")
    columns = {
        str(key): _numbers(value, num_queries, f"extra_logs[{key!r}]", source, spread=True)
        for key, value in (logs or {}).items()
    }
    return [
        Reward(rewards[i], scores[i], {key: column[i] for key, column in columns.items()}) for i in range(num_queries)
    ]


def _numbers(value: Any, num_queries: int, what: str, source: str, *, spread: bool = False) -> list[float]:
    """Return one finite float per query; `spread` repeats a single number for all."""
    if hasattr(value, "detach"):  # a tensor; torch itself need not be imported
        value = value.detach().float().cpu().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RewardError(
            f"{source!r} returned {_short(value)} as {what}; wanted {num_queries} numbers, one per query ({error})"
        ) from error
    if value is None or (array.size == 0 and num_queries):
        raise RewardError(f"{source!r} returned {_short(value)} as {what}; wanted {num_queries} numbers, one per query")
    if array.ndim == 0 and (spread or num_queries == 1):
        array = np.full(num_queries, array)
    if array.size != num_queries or array.ndim == 0:
        raise RewardError(f"{source!r} returned {array.size} {what} for {num_queries} queries; wanted one per query")
    array = array.reshape(-1)
    if not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        raise RewardError(
            f"{source!r} returned {array[bad]} as {what} of query {bad} (None counts as NaN); wanted a finite number. "
            "Raise an exception where no reward can be given: the attempt is then left out and counted"
        )
    return [float(number) for number in array]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
