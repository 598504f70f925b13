"""One episode on a server: an environment of either kind, under deadlines; no step is taken twice."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import DeadlineError, EnvError, RewardError
from ..base import Action, AsyncEnv, Env
from ..daemon_threads import DaemonThreads
from ..factory import EnvFactory
from ..messages import as_messages
from ..task import Task
from .wire import BadRequestError, Json, encoded, observation_to_json

MAX_THREADS = 64
_READ = frozenset({"score", "extra_logs", "tools"})  # of an info, by executors


@dataclass(frozen=True)
class _Taken:
    turn: int
    told: Json


class Session:
    """An environment with an episode.

    Args:
        env: It.
        threads: Where calls of a synchronous one run.
        timeout_s: Deadline of each call.
    """

    def __init__(self, env: Env | AsyncEnv, threads: DaemonThreads, timeout_s: float) -> None:
        self.env = env
        self._threads = threads
        self._timeout_s = timeout_s
        self._turn = 0
        self._last: _Taken | None = None

    @classmethod
    async def begin(
        cls, factory: EnvFactory, task: Task | None, seed: int | None, threads: DaemonThreads, timeout_s: float
    ) -> "tuple[Session, Json]":
        """Make an environment and reset it; it is closed if that fails. Also return what it says, as JSON."""
        env = await threads.call(factory, timeout_s=timeout_s, what=f"making {factory.spec}")
        session = cls(env, threads, timeout_s)
        seed = task.seed if task is not None and seed is None else seed
        options = None if task is None else {"task": task}
        try:
            result = await session._call(env.reset, seed=seed, options=options)
            observation, info = session._unpacked(result, "reset", "(observation, info)", 2)
            told = {"observation": _observation(observation), "info": _info(info)}
        except BaseException:
            await session.close()
            raise
        return session, told

    async def step(self, action: Action, turn: int | None) -> Json:
        """Answer the action of this turn, or give the answer that it had; without a number, of the next turn.

        The answer is JSON.

        Raises:
            BadRequestError: It is another turn's time, or the episode is over.
        """
        if turn is not None and self._last is not None and turn == self._last.turn:
            return self._last.told
        if turn is not None and turn != self._turn:
            raise BadRequestError(f"turn {turn} was to be answered, and it is the time of turn {self._turn}")
        if self._last is not None and (self._last.told["terminated"] or self._last.told["truncated"]):
            raise BadRequestError("the episode is over; reset begins another")
        result = await self._call(self.env.step, action)
        wanted = "(observation, reward, terminated, truncated, info)"
        observation, reward, terminated, truncated, info = self._unpacked(result, "step", wanted, 5)
        told = {
            "observation": _observation(observation),
            "reward": _finite(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "info": _info(info),
        }
        self._last = _Taken(self._turn, told)
        self._turn += 1
        return told

    async def close(self) -> None:
        """Close the environment."""
        await self._call(self.env.close)

    def _unpacked(self, result: object, method: str, wanted: str, length: int) -> tuple[Any, ...]:
        if not isinstance(result, tuple) or len(result) != length:
            raise EnvError(f"{type(self.env).__name__}.{method} returned {result!r:.200}; wanted {wanted}")
        return result

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        what = f"{type(self.env).__name__}.{method.__name__}"
        if isinstance(self.env, Env):
            return await self._threads.call(lambda: method(*args, **kwargs), timeout_s=self._timeout_s, what=what)
        return await _in_time(method(*args, **kwargs), self._timeout_s, what)


async def _in_time(awaitable: Awaitable[Any], timeout_s: float, what: str) -> Any:
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await awaitable
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s") from error


def _observation(value: Any) -> Json:  # Any: whatever an environment returned
    told = observation_to_json(value)
    if not isinstance(value, str):
        as_messages(value, "an environment")
    encoded(told)
    return told


def _finite(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RewardError(f"an environment's reward is {value!r:.200}; wanted a finite number") from error
    if not math.isfinite(number):
        raise RewardError(f"an environment's reward is {number}; wanted a finite number")
    return number


def _info(info: Any) -> Json:
    """Return an info as JSON; what only the environment itself knows how to read is shown as text."""
    if not isinstance(info, Mapping):
        raise EnvError(f"an environment returned an info of type {type(info).__name__}; wanted a dict")
    told = {}
    for key, value in info.items():
        try:
            told[str(key)] = json.loads(encoded(value))
        except EnvError:
            if key in _READ:
                raise
            told[str(key)] = repr(value)
    return told
