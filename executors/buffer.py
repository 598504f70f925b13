"""Groups on their way to the learner, with a bound on how old their tokens may be when it takes them."""

from collections import deque
from dataclasses import dataclass, replace

from ..envs.task import Task
from ..errors import ConfigError, TrajectoryError
from .trajectory import EndReason, Failure, FailureKind, Trajectory


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


class Buffer:
    """First in, first out. Age is measured when groups are taken, so time in the buffer counts.

    Args:
        max_staleness: How many versions older than the learner's a token may be; 0 keeps rollouts and
            learning in step.
    """

    def __init__(self, max_staleness: int = 0) -> None:
        if max_staleness < 0:
            raise ConfigError(f"max_staleness must not be negative, got {max_staleness}")
        self._max_staleness = max_staleness
        self._groups: deque[Group] = deque()
        self._num_stale = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def num_stale(self) -> int:
        """Trajectories that were too old when the learner came for them, so far."""
        return self._num_stale

    def put(self, group: Group) -> None:
        """Add a group."""
        self._groups.append(group)

    def take(self, num_groups: int, version: int) -> list[Group]:
        """Take the oldest groups, at most `num_groups`, for learning on weights of `version`.

        A trajectory with a token that is too old stays in its group, failed as `stale`.
        """
        count = min(num_groups, len(self._groups))
        return [self._checked(self._groups.popleft(), version) for _ in range(count)]

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
        if lag <= self._max_staleness:
            return trajectory
        self._num_stale += 1
        message = f"sampled at version {oldest}, {lag} versions old; max_staleness is {self._max_staleness}"
        failure = Failure(FailureKind.STALE, message, trajectory.num_turns - 1)
        return replace(trajectory, end_reason=EndReason.FAILED, failure=failure)
