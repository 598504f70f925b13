"""Groups on their way to the learner, with a bound on how old their tokens may be when it takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...envs.task import Task
from ...errors import TrajectoryError
from ..episodes.trajectory import EndReason, Failure, FailureKind, Trajectory
from .draws import Draw
from .pacing import Pace


@dataclass(frozen=True)
class Group:
    """The attempts at one task, failed ones included."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        strangers = {t.task.id for t in self.trajectories} - {self.task.id}
        if strangers:
            raise TrajectoryError(f"a group of task {self.task.id!r} got trajectories of {sorted(strangers)}")
        attempts = [t.attempt for t in self.trajectories]
        if len(set(attempts)) != len(attempts):
            raise TrajectoryError(f"a group of task {self.task.id!r} got an attempt twice: {sorted(attempts)}")

    @property
    def num_valid(self) -> int:
        """Attempts that may enter the loss and the statistics."""
        return sum(t.is_valid for t in self.trajectories)

    @property
    def oldest_version(self) -> int | None:
        """The version of the oldest token of a valid attempt; None without one."""
        oldest = [t.oldest_version for t in self.trajectories if t.is_valid]
        return min((version for version in oldest if version is not None), default=None)


@dataclass(frozen=True)
class Finished:
    """A group that is done, the draw it came from, and the version of the weights when it was begun."""

    draw: Draw
    group: Group
    began: int

    @cached_property
    def oldest_version(self) -> int:
        """The version that its age is measured from."""
        oldest = self.group.oldest_version
        return self.began if oldest is None else oldest

    @cached_property
    def newest_version(self) -> int:
        """The version that the age of its freshest valid attempt is measured from."""
        versions = [t.oldest_version for t in self.group.trajectories if t.is_valid]
        return max((self.began if oldest is None else oldest for oldest in versions), default=self.began)


class Buffer:
    """Finished groups, earliest deadline first. Age is measured when they are taken, so time in the buffer counts.

    Args:
        pace: Says how old a token may be, and which groups are worth waiting for.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._finished: list[Finished] = []
        self.num_stale = 0  # trajectories that were too old when the learner came for them

    def __len__(self) -> int:
        return len(self._finished)

    @property
    def finished(self) -> tuple[Finished, ...]:
        """What waits for the learner, in the order of its draws."""
        return tuple(sorted(self._finished, key=lambda finished: finished.draw.serial))

    def put(self, finished: Finished) -> None:
        """Add a group."""
        self._finished.append(finished)

    def expire(self, version: int) -> list[Draw]:
        """Remove the groups of which no valid attempt is fresh enough for weights of `version`; return their draws."""
        expired = [f for f in self._finished if self._pace.deadline(f.newest_version) < version]
        for finished in expired:
            self._finished.remove(finished)
            self.num_stale += finished.group.num_valid
        return [finished.draw for finished in expired]

    def take(self, count: int, version: int, running: Sequence[int] = ()) -> list[Finished] | None:
        """Take `count` groups for learning on weights of `version`, in the order of their draws; None: wait.

        A trajectory with a token that is too old stays in its group, failed as `stale`.

        Args:
            count: How many; fewer come only where nothing runs any more.
            version: Of the learner's weights.
            running: Deadlines of the groups that are not finished.
        """
        order = sorted(self._finished, key=lambda f: (self._deadline(f), f.draw.serial))
        taken, left = order[:count], order[count:]
        if running and len(taken) < count:
            return None
        if self._pace.must_wait([self._deadline(f) for f in left], running, version):
            return None
        self._finished = left
        taken.sort(key=lambda f: f.draw.serial)
        return [replace(f, group=self._checked(f.group, version)) for f in taken]

    def pick(self, serials: Sequence[int], version: int) -> list[Finished] | None:
        """Take just these groups, as `take` does and in this order; None: wait."""
        found = {finished.draw.serial: finished for finished in self._finished}
        if not found.keys() >= set(serials):
            return None
        self._finished = [finished for finished in self._finished if finished.draw.serial not in serials]
        return [replace(found[serial], group=self._checked(found[serial].group, version)) for serial in serials]

    def _deadline(self, finished: Finished) -> int:
        return self._pace.deadline(finished.oldest_version)

    def _checked(self, group: Group, version: int) -> Group:
        return replace(group, trajectories=tuple(self._fresh_or_failed(t, version) for t in group.trajectories))

    def _fresh_or_failed(self, trajectory: Trajectory, version: int) -> Trajectory:
        oldest = trajectory.oldest_version
        if oldest is None or not trajectory.is_valid:
            return trajectory
        lag = version - oldest
        if lag < 0:
            raise TrajectoryError(
                f"task {trajectory.task.id!r} was sampled at version {oldest}, and the learner is at {version}: "
                "tokens cannot come from weights that are not published yet"
            )
        if lag <= self._pace.max_staleness:
            return trajectory
        self.num_stale += 1
        bound = self._pace.max_staleness
        message = f"sampled at version {oldest}, {lag} versions old; max_staleness is {bound}"
        failure = Failure(FailureKind.STALE, message, trajectory.num_turns - 1)
        return replace(trajectory, end_reason=EndReason.FAILED, failure=failure)
