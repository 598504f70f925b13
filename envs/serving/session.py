"""One episode on a server: an environment of either kind, under deadlines; no step is taken twice."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...errors import DeadlineError, EnvError
from ..base import Action, AsyncEnv, Env, StepResult
from ..daemon_threads import DaemonThreads
from ..factory import EnvFactory
from ..messages import Observation
from ..task import Task
from .wire import BadRequestError

MAX_THREADS = 64


@dataclass(frozen=True)
class _Taken:
    turn: int
    result: StepResult


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
    ) -> "tuple[Session, Observation, dict[str, Any]]":
        """Make an environment and reset it; it is closed if that fails."""
        env = await threads.call(factory, timeout_s=timeout_s, what=f"making {factory.spec}")
        session = cls(env, threads, timeout_s)
        seed = task.seed if task is not None and seed is None else seed
        options = None if task is None else {"task": task}
        try:
            observation, info = await session._call(env.reset, seed=seed, options=options)
        except BaseException:
            await session.close()
            raise
        return session, observation, info

    async def step(self, action: Action, turn: int | None) -> StepResult:
        """Answer the action of this turn, or give the answer that it had; without a number, of the next turn.

        Raises:
            BadRequestError: It is another turn's time, or the episode is over.
        """
        if turn is not None and self._last is not None and turn == self._last.turn:
            return self._last.result
        if turn is not None and turn != self._turn:
            raise BadRequestError(f"turn {turn} was to be answered, and it is the time of turn {self._turn}")
        if self._last is not None and (self._last.result[2] or self._last.result[3]):
            raise BadRequestError("the episode is over; reset begins another")
        result: StepResult = await self._call(self.env.step, action)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvError(
                f"{type(self.env).__name__}.step returned {result!r:.200}; wanted (observation, reward, terminated, "
                "truncated, info)"
            )
        self._last = _Taken(self._turn, result)
        self._turn += 1
        return result

    async def close(self) -> None:
        """Close the environment."""
        await self._call(self.env.close)

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
