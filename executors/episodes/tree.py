"""Tree rollouts: an episode forks after chosen turns, and its leaves are the attempts at a task.

Each leaf by itself is a sample of the policy like any other attempt. To keep it so, nothing is drawn anew for what
turned out short: an episode that ends before it was to fork, cannot fork just then, or is kept from it by the model's
own program, stands for all leaves it would have had. With fresh episodes in their place, or with none, such ones would
be rarer among the attempts than they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from ...agents.base import Generator, Sampling
from ...envs.task import Task
from ...errors import ConfigError
from ..pools.env_pool import EnvFactory
from ..pools.watchdog import episode_name
from .branching import Branch, Branching, shared_turn
from .episode import Episode
from .failures import EpisodeError
from .multi_turn import MultiTurn
from .retry import Executor, SeedFor, retrying
from .sides import SeatOf, num_sides, run_games
from .trajectory import EndReason, Failure, FailureKind, Trajectory


async def run_attempts(
    executor: Executor,
    task: Task,
    attempts: Sequence[int],
    seat_of: SeatOf,
    sampling: Sampling,
    seed_for: SeedFor | None = None,
    *,
    branching: Branching | None = None,
    max_retries: int = 2,
    backoff_s: float = 0.5,
) -> tuple[Trajectory, ...]:
    """Run the attempts at one task, all at once; failed ones are begun again as `retrying` does it.

    Args:
        executor: Runs each; where episodes fork, a `MultiTurn`.
        task: What to do.
        attempts: Their numbers.
        seat_of: The generator of each; all of one engine, for the sake of its cache.
        sampling: How to sample.
        seed_for: As `MultiTurn.run` takes it; leaves have their own numbers, so their seeds differ.
        branching: Where episodes fork; by default nowhere.
        max_retries: As `retrying` takes it.
        backoff_s: As `retrying` takes it.
    """
    if isinstance(executor, MultiTurn) and (sides := num_sides(executor.env_factory, task)) > 1:
        return await run_games(
            executor,
            task,
            attempts,
            sides,
            seat_of,
            sampling,
            seed_for,
            max_retries=max_retries,
            backoff_s=backoff_s,
        )

    async def by_itself(attempt: int, first: Trajectory | None = None) -> Trajectory:
        with seat_of(attempt) as generator:
            return await retrying(
                executor,
                task,
                attempt,
                generator,
                sampling,
                seed_for,
                max_retries=max_retries,
                backoff_s=backoff_s,
                first=first,
            )

    async def run(numbers: tuple[int, ...]) -> tuple[Trajectory, ...]:
        if len(numbers) == 1:
            return (await by_itself(numbers[0]),)
        if not isinstance(executor, MultiTurn):
            raise ConfigError(f"only episodes of environments fork, and {type(executor).__name__} runs others")
        multi_turn = executor

        def episode(generator: Generator) -> Episode:
            return multi_turn.episode(task, numbers[0], generator, sampling, seed_for)

        return await _Tree(task, branching or Branching(), seat_of, by_itself).run(
            numbers, episode, multi_turn.env_factory
        )

    try:
        async with asyncio.TaskGroup() as group:
            trees = [
                group.create_task(run(n), name=episode_name(task.id, n[0]))
                for n in (branching or Branching()).trees(attempts)
            ]
    except ExceptionGroup as errors:  # no failure of an episode; the first says what it is
        raise errors.exceptions[0] from None
    return tuple(sorted((leaf for tree in trees for leaf in tree.result()), key=lambda leaf: leaf.attempt))


class _Tree:
    """One tree while it grows. An episode in it stands for several attempts until it has forked often enough.

    Args:
        task: What its episodes are to do.
        branching: Where it forks.
        seat_of: The generator of each attempt.
        again: From a failed leaf to what comes of trying it again by itself, as a whole episode; perhaps the same leaf.
    """

    def __init__(
        self,
        task: Task,
        branching: Branching,
        seat_of: SeatOf,
        again: Callable[[int, Trajectory], Awaitable[Trajectory]],
    ) -> None:
        self._task = task
        self._branching = branching
        self._seat_of = seat_of
        self._again = again
        self._branches: dict[int, Branch | None] = {}
        self._leaves: dict[int, Trajectory] = {}
        self._strangers: set[int] = set()  # attempts that were begun again, and share nothing with the others
        self._tasks = asyncio.TaskGroup()

    async def run(
        self, attempts: tuple[int, ...], root: Callable[[Generator], Episode], env_factory: EnvFactory
    ) -> tuple[Trajectory, ...]:
        """Grow the tree and return its leaves, each with what it branched off."""
        self._branches[attempts[0]] = None
        try:
            async with self._tasks:
                self._begin(self._grow_root(attempts, root, env_factory), attempts[0])
        except ExceptionGroup as errors:  # no failure of an episode; the first says what it is
            raise errors.exceptions[0] from None
        return tuple(replace(leaf, branch_of=self._branch_of(leaf)) for leaf in self._leaves.values())

    async def _grow_root(
        self, attempts: tuple[int, ...], root: Callable[[Generator], Episode], env_factory: EnvFactory
    ) -> None:
        with self._seat_of(attempts[0]) as generator:
            await self._grow(root(generator), attempts, self._branching.turns, env_factory)

    async def _grow(
        self,
        episode: Episode,
        attempts: tuple[int, ...],
        turns: tuple[int, ...],
        env_factory: EnvFactory | None = None,
    ) -> None:
        """Play an episode to its end; after each of the turns it forks. One that has not begun needs a factory."""
        failure: Failure | None = None
        end: EndReason | None = EndReason.FAILED
        try:
            if env_factory is not None:
                await episode.begin(env_factory)
            for place, turn in enumerate(turns):
                end = await episode.play(turn)
                if end is not None:
                    break
                attempts = await self._fork(episode, attempts, turn, turns[place + 1 :])
            else:
                end = await episode.play()
            episode.finish()
        except EpisodeError as failed:
            failure, end = failed.failure, EndReason.FAILED
        finally:
            await episode.close()
        assert end is not None  # what has not ended was played on
        await self._end(episode.trajectory(end, failure), attempts)

    async def _fork(
        self, episode: Episode, attempts: tuple[int, ...], turn: int, later_turns: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Fork an episode, one twin after the other; return the attempts that it stands for from now on."""
        size = len(attempts) // self._branching.factor
        own = attempts[:size]
        for first in range(size, len(attempts), size):
            is_over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            its = attempts[first : first + size]
            self._branches[its[0]] = attempts[0], turn
            twin = self._begin(self._grow_twin(episode, its, later_turns, is_over), its[0])
            try:
                own += () if await is_over else its
            except asyncio.CancelledError:
                twin.cancel()
                await asyncio.wait([twin])  # no environment is closed in the midst of its fork
                raise
        return own

    async def _grow_twin(
        self, episode: Episode, attempts: tuple[int, ...], turns: tuple[int, ...], is_over: asyncio.Future[bool]
    ) -> None:
        """Fork an episode in the task that will play the twin: some environments want all their calls from one.

        Args:
            episode: It waits meanwhile.
            attempts: What the twin will stand for.
            turns: After which it will fork.
            is_over: Told when the fork is; False where the episode does not fork, and keeps these attempts.
        """
        with self._seat_of(attempts[0]) as generator:
            twin: Episode | Failure | None = None
            try:
                twin = await episode.fork(attempts[0], generator)
            except EpisodeError as failed:
                if failed.failure.kind is not FailureKind.FORK_REFUSED:
                    twin = failed.failure
            finally:
                if not is_over.done():  # as it is where this was cancelled
                    is_over.set_result(twin is not None)
            if isinstance(twin, Episode):
                await self._grow(twin, attempts, turns)
            elif twin is not None:
                await self._end(episode.trajectory(EndReason.FAILED, twin), attempts)

    async def _end(self, trajectory: Trajectory, attempts: tuple[int, ...]) -> None:
        """Keep what an episode came to, once for each attempt that it stands for; try failed ones again."""
        first, *others = (replace(trajectory, attempt=attempt) for attempt in attempts)
        for leaf in others:
            self._branches[leaf.attempt] = attempts[0], trajectory.num_turns - 1
            self._leaves[leaf.attempt] = leaf
            if not leaf.is_valid:
                self._begin(self._try_again(leaf), leaf.attempt)
        self._leaves[first.attempt] = first
        if not first.is_valid:
            await self._try_again(first)  # in the seat that it has

    def _begin(self, work: Coroutine[Any, Any, None], attempt: int) -> asyncio.Task[None]:  # Any: it neither yields
        return self._tasks.create_task(work, name=episode_name(self._task.id, attempt))

    async def _try_again(self, leaf: Trajectory) -> None:
        again = self._leaves[leaf.attempt] = await self._again(leaf.attempt, leaf)
        if again.earlier_failures:
            self._strangers.add(leaf.attempt)

    def _branch_of(self, leaf: Trajectory) -> Branch | None:
        """Return which valid attempt before this one it shares most with; those that failed may be replaced later."""
        if leaf.attempt in self._strangers:
            return None
        branches: list[Branch] = []
        for other in sorted(self._leaves.keys() - self._strangers):
            if other < leaf.attempt and self._leaves[other].is_valid:
                turn = shared_turn(self._branches, leaf.attempt, other)
                branches += [] if turn is None else [(other, turn)]
        return max(branches, key=lambda branch: branch[1], default=None)
