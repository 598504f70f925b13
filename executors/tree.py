"""Tree rollouts: an episode forks after chosen turns, and its leaves are the attempts at a task.

Each leaf by itself is a sample of the policy like any other attempt. To keep it so, nothing is drawn anew for what
turned out short: an episode that ends before it was to fork stands for all leaves it would have had, since fresh
episodes in their place would make those that end early rarer among the attempts than they are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from ..agents.base import Generator, Sampling
from ..envs.task import Task
from .branching import Branch, Branching, shared_turn
from .episode import Episode
from .failures import EpisodeError
from .multi_turn import MultiTurn
from .retry import SeedFor, retrying
from .trajectory import EndReason, Failure, Trajectory

Again = Callable[[Trajectory], Awaitable[Trajectory]]
"""From a leaf that failed to what comes of trying it again by itself, as a whole episode; perhaps the same leaf."""


async def run_attempts(
    executor: MultiTurn,
    task: Task,
    attempts: Sequence[int],
    generator: Generator,
    sampling: Sampling,
    seed_for: SeedFor | None = None,
    *,
    branching: Branching | None = None,
    max_retries: int = 2,
    backoff_s: float = 0.5,
) -> tuple[Trajectory, ...]:
    """Run the attempts at one task, all at once; failed ones are begun again as `retrying` does it.

    Args:
        executor: Runs each.
        task: What to do.
        attempts: Their numbers.
        generator: The engine of all of them.
        sampling: How to sample.
        seed_for: As `MultiTurn.run` takes it; leaves have their own numbers, so their seeds differ.
        branching: Where episodes fork; by default nowhere.
        max_retries: As `retrying` takes it.
        backoff_s: As `retrying` takes it.
    """

    def by_itself(attempt: int, first: Trajectory | None = None) -> Awaitable[Trajectory]:
        return retrying(
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
        root = executor.episode(task, numbers[0], generator, sampling, seed_for)
        tree = _Tree(branching or Branching(), lambda leaf: by_itself(leaf.attempt, leaf))
        return await tree.run(root, numbers, partial(root.begin, executor.env_factory))

    trees = await asyncio.gather(*map(run, (branching or Branching()).trees(attempts)))
    return tuple(sorted((leaf for leaves in trees for leaf in leaves), key=lambda leaf: leaf.attempt))


class _Tree:
    """One tree while it grows. An episode in it stands for several attempts until it has forked often enough."""

    def __init__(self, branching: Branching, again: Again) -> None:
        self._branching = branching
        self._again = again
        self._branches: dict[int, Branch | None] = {}
        self._leaves: dict[int, Trajectory] = {}
        self._strangers: set[int] = set()  # attempts that were begun again, and share nothing with the others
        self._tasks = asyncio.TaskGroup()

    async def run(
        self, root: Episode, attempts: tuple[int, ...], begin: Callable[[], Awaitable[None]]
    ) -> tuple[Trajectory, ...]:
        """Grow the tree and return its leaves, each with what it branched off."""
        self._branches[attempts[0]] = None
        try:
            async with self._tasks:
                await self._grow(root, attempts, self._branching.turns, begin)
        except ExceptionGroup as errors:  # no failure of an episode; the first says what it is
            raise errors.exceptions[0] from None
        return tuple(replace(leaf, branch_of=self._branch_of(leaf)) for leaf in self._leaves.values())

    async def _grow(
        self,
        episode: Episode,
        attempts: tuple[int, ...],
        turns: tuple[int, ...],
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Play an episode to its end; after each of the turns it forks."""
        failure: Failure | None = None
        end: EndReason | None = EndReason.FAILED
        try:
            if begin is not None:
                await begin()
            for place, turn in enumerate(turns):
                end = await episode.play_until(turn)
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
        self._end(episode.trajectory(end, failure), attempts)

    async def _fork(
        self, episode: Episode, attempts: tuple[int, ...], turn: int, later_turns: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Fork an episode, one twin after the other; return the attempts that it stands for from now on."""
        size = len(attempts) // self._branching.factor
        for first in range(size, len(attempts), size):
            is_forked = asyncio.Event()
            its = attempts[first : first + size]
            self._branches[its[0]] = attempts[0], turn
            twin = self._tasks.create_task(self._grow_twin(episode, its, later_turns, is_forked))
            try:
                await is_forked.wait()
            except asyncio.CancelledError:
                twin.cancel()
                await asyncio.wait([twin])  # no environment is closed in the midst of its fork
                raise
        return attempts[:size]

    async def _grow_twin(
        self, episode: Episode, attempts: tuple[int, ...], turns: tuple[int, ...], is_forked: asyncio.Event
    ) -> None:
        """Fork an episode in the task that will play the twin: some environments want all their calls from one."""
        try:
            twin = await episode.fork(attempts[0])
        except EpisodeError as failed:
            self._end(replace(episode.trajectory(EndReason.FAILED, failed.failure), attempt=attempts[0]), attempts)
            return
        finally:
            is_forked.set()
        await self._grow(twin, attempts, turns)

    def _end(self, trajectory: Trajectory, attempts: tuple[int, ...]) -> None:
        """Keep what an episode came to, once for each attempt that it stands for; try failed ones again."""
        for attempt in attempts:
            if attempt != attempts[0]:
                self._branches[attempt] = attempts[0], trajectory.num_turns - 1
            leaf = replace(trajectory, attempt=attempt)
            self._leaves[attempt] = leaf
            if not leaf.is_valid:
                self._tasks.create_task(self._try_again(leaf))

    async def _try_again(self, leaf: Trajectory) -> None:
        again = self._leaves[leaf.attempt] = await self._again(leaf)
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
