"""Games whose sides are all the policy's: one environment, and for each side an episode and a trajectory of its own.

A side sees its own conversation and has its own reward. Attempts `n * k` to `n * k + n - 1` of a task are the sides of
game `k`, so that half of the attempts at a game of two play each side. A game fails as a whole.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import cast

from ...agents.base import Generator, Sampling
from ...envs.factory import EnvFactory as OurFactory
from ...envs.factory import for_task
from ...envs.task import Task
from ..pools.env_pool import EnvFactory, EnvPool
from ..pools.watchdog import episode_name
from .failures import TRANSIENT
from .multi_turn import MultiTurn
from .retry import SeedFor, pause_s
from .table import Table
from .trajectory import EndReason, Failure, FailureKind, Trajectory

SeatOf = Callable[[int], AbstractContextManager[Generator]]
"""From an attempt to what it asks for completions: entered when it begins or branches off, left when it has ended."""


def num_sides(env_factory: EnvFactory, task: Task) -> int:
    """Return how many episodes a game of this task is; 1 for what is no game."""
    factory, _ = for_task(env_factory, task)
    return factory.num_sides if isinstance(factory, OurFactory) else 1


async def run_games(
    executor: MultiTurn,
    task: Task,
    attempts: Sequence[int],
    sides: int,
    seat_of: SeatOf,
    sampling: Sampling,
    seed_for: SeedFor | None = None,
    *,
    max_retries: int = 2,
    backoff_s: float = 0.5,
) -> tuple[Trajectory, ...]:
    """Run attempts at a game, as `run_attempts` does it.

    Where not all sides of a game are among the attempts, the policy plays the others too, and nothing is kept of them.
    """
    games: dict[int, list[int]] = {}
    for attempt in attempts:
        games.setdefault(attempt // sides, []).append(attempt)

    async def run(game: int, wanted: list[int]) -> list[Trajectory]:
        with ExitStack() as stack:
            seats = {attempt: stack.enter_context(seat_of(attempt)) for attempt in wanted}
            generators = [seats.get(game * sides + side, seats[wanted[0]]) for side in range(sides)]
            earlier: list[Failure] = []
            while True:
                played = await play(executor, task, game * sides, generators, sampling, seed_for)
                kept = [replace(t, earlier_failures=tuple(earlier)) for t in played if t.attempt in seats]
                failure = next((t.failure for t in kept if t.failure is not None), None)
                if failure is None or failure.kind not in TRANSIENT or len(earlier) >= max_retries:
                    return kept
                earlier.append(failure)
                await asyncio.sleep(pause_s(len(earlier), backoff_s))

    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(run(game, wanted)) for game, wanted in games.items()]
    return tuple(sorted((t for each in runs for t in each.result()), key=lambda t: t.attempt))


async def play(
    executor: MultiTurn,
    task: Task,
    first_attempt: int,
    generators: Sequence[Generator],
    sampling: Sampling,
    seed_for: SeedFor | None,
) -> list[Trajectory]:
    """Play one game; return the trajectory of each side, in their order."""
    table = Table(executor.env_pool, len(generators))

    async def one(side: int) -> Trajectory:
        # An episode asks its pool for nothing but an environment; the table gives it its side of the one there is.
        pool = cast(EnvPool, table.seat(side))
        player = MultiTurn(executor.agent, executor.env_factory, pool, executor.limits)
        trajectory = await player.run(task, first_attempt + side, generators[side], sampling, seed_for)
        table.leave(side, trajectory.failure)
        return trajectory

    try:
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(one(side), name=episode_name(task.id, first_attempt + side))
                for side in range(len(generators))
            ]
    finally:
        await table.close()
    return _as_one([run.result() for run in runs], table.failed)


def _as_one(trajectories: list[Trajectory], failed: int | None) -> list[Trajectory]:
    """Let all sides fail with the one that kept the game from its end, or with any: half a game is none.

    A side that had no turn fails alone. Were games drawn anew for it, short ones would be rarer than they are.
    """
    failures = [t.failure for t in trajectories if t.failure is not None and t.failure.kind is not FailureKind.NO_TURN]
    if not failures:
        return trajectories
    failure = failures[0] if failed is None else trajectories[failed].failure
    return [replace(t, end_reason=EndReason.FAILED, failure=failure) for t in trajectories]
