"""One environment that several episodes share, each as a side of its own: who is not to move waits."""

import asyncio
from collections.abc import Mapping
from typing import Any

from ...envs.base import Action
from ...envs.task import Task
from ...errors import EnvError, NoTurnError
from ..pools.env_pool import EnvFactory, EnvPool, PooledEnv
from .trajectory import Failure


class Table:
    """A game's environment, and what each side waits for.

    Args:
        pool: Where the environment lives.
        num_sides: How many episodes there are.
    """

    def __init__(self, pool: EnvPool, num_sides: int) -> None:
        self._pool = pool
        self._seats = [Seat(self, side) for side in range(num_sides)]
        # What comes to a side that waits: what `step` is to return to it, or an error.
        self._inboxes: list[asyncio.Queue[tuple[Any, ...] | Exception]] = [asyncio.Queue() for _ in range(num_sides)]
        self._opening = asyncio.Lock()
        self._env: PooledEnv | None = None
        self._has_begun = False
        self._broken: Exception | None = None
        self._is_over = False
        self.failed: int | None = None  # the side that kept the game from its end

    def seat(self, side: int) -> "Seat":
        """Return a side's place, which is to its episode both a pool and an environment."""
        return self._seats[side]

    async def make(self, factory: EnvFactory, timeout_s: float) -> PooledEnv:
        """Make the environment, for whoever comes first."""
        async with self._opening:
            if self._broken is not None:
                raise self._broken
            if self._env is None:
                try:
                    self._env = await self._pool.make(factory, timeout_s)
                except Exception as error:
                    self._broken = error
                    raise
            return self._env

    async def reset(self, side: int, task: Task, timeout_s: float) -> object:
        """Begin the game, and wait for a side's first turn."""
        async with self._opening:
            if self._broken is not None:
                raise self._broken
            if not self._has_begun:
                self._has_begun = True
                try:
                    await self._begin(task, timeout_s)
                except Exception as error:
                    self._broken = error
                    raise
        came = await self._next(side)
        if came[2] or came[3]:
            raise NoTurnError("the game was over before this side's first turn; there is nothing to learn from")
        return came[0], came[4]

    async def step(self, side: int, action: Action, timeout_s: float) -> object:
        """Make a side's move, and wait for its next turn or for the end."""
        assert self._env is not None  # `reset` comes first
        result = await self._env.step(action, timeout_s)
        if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], Mapping)):
            return result  # the episode says what is wrong with it
        observation, reward, terminated, truncated, info = result
        if terminated or truncated:
            ends = self._ends(result)
            self._is_over = True  # from here on nobody waits for who leaves
            for other, inbox in enumerate(self._inboxes):
                if other != side:
                    inbox.put_nowait(ends[other])
            return ends[side]
        self._tell(observation, info)
        came = await self._next(side)
        return (came[0], reward + came[1], *came[2:])  # the reward of a move is the mover's

    def leave(self, side: int, failure: Failure | None) -> None:
        """Take note that a side's episode has ended; where the game has not, it ends for the others too."""
        if self._is_over:
            return
        self._is_over = True
        self.failed = None if failure is None else side
        for other, inbox in enumerate(self._inboxes):
            if other != side:
                # At a limit of the run nobody has won.
                stopped: tuple[Any, ...] = ("", 0.0, False, True, {})
                inbox.put_nowait(stopped if failure is None else EnvError(f"side {side} failed: {failure.message}"))

    async def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            await self._env.close()

    async def _begin(self, task: Task, timeout_s: float) -> None:
        assert self._env is not None  # `make` comes first
        result = await self._env.reset(task, timeout_s)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise EnvError(f"{self._env.name}.reset returned {result!r:.200}; wanted (observation, info)")
        self._tell(*result)

    def _tell(self, observation: object, info: Mapping[str, Any]) -> None:
        side = info.get("side")
        if not isinstance(side, int) or side not in range(len(self._inboxes)):
            raise EnvError(
                f"info['side'] is {side!r}; wanted the side whose turn is next, 0 to {len(self._inboxes) - 1}"
            )
        self._inboxes[side].put_nowait((observation, 0.0, False, False, dict(info)))

    def _ends(self, result: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return how a game's end looks to each side."""
        observation, _, terminated, truncated, info = result
        sides = range(len(self._inboxes))
        rewards, scores = info.get("rewards"), info.get("scores") or [None] * len(sides)
        if not isinstance(rewards, list | tuple) or len(rewards) != len(sides) or len(scores) != len(sides):
            raise EnvError(
                f"info['rewards'] is {rewards!r} at the end of a game; wanted one for each of {len(sides)} sides"
            )
        logs = info.get("extra_logs") or {}
        return [
            (observation, rewards[side], terminated, truncated, {"score": scores[side], "extra_logs": logs})
            for side in sides
        ]

    async def _next(self, side: int) -> tuple[Any, ...]:
        """Wait for what comes to a side. The other sides have their deadlines, and whoever leaves says so."""
        came = await self._inboxes[side].get()
        if isinstance(came, Exception):
            raise came
        return came


class Seat:
    """A side's place: what an episode takes for its pool, and then for its environment."""

    wants_query = False

    def __init__(self, table: Table, side: int) -> None:
        self._table = table
        self._side = side
        self.name = f"side {side}"

    async def make(self, factory: EnvFactory, timeout_s: float) -> "Seat":
        """Sit down."""
        env = await self._table.make(factory, timeout_s)
        self.name, self.wants_query = env.name, env.wants_query
        return self

    async def reset(self, task: Task, timeout_s: float) -> object:
        """Wait for this side's first turn."""
        return await self._table.reset(self._side, task, timeout_s)

    async def step(self, action: Action, timeout_s: float) -> object:
        """Move, and wait for this side's next turn."""
        return await self._table.step(self._side, action, timeout_s)

    async def fork(self, timeout_s: float) -> None:
        """Say that games do not fork."""

    async def close(self) -> None:
        """Leave the environment to the table, which closes it when all sides have ended."""
