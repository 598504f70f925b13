"""How far rollouts run ahead of the learner, so that what they finish is still fresh when the learner takes it.

A group begun at version v may be learned from up to version v + max_staleness, its deadline. Admission keeps no more
groups than the batches ahead hold; a batch takes those with the earliest deadlines, and waits for one that is not done
only if leaving it would let a group expire later, however the learner goes on (earliest deadline first is optimal:
Horn, 1974).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ConfigError


@dataclass(frozen=True)
class Pace:
    """The numbers that pace a run.

    Attributes:
        batch_groups: Groups that one step of the learner takes.
        batches_ahead: Batches that are begun beside the one the learner waits for or works on; 0 keeps rollouts and
            learning in step.
        max_staleness: How many versions older than the learner's a token may be.
        generate_groups: Groups in flight for one batch; more than `batch_groups` where some will be filtered out.
    """

    batch_groups: int
    batches_ahead: int = 0
    max_staleness: int = 0
    generate_groups: int | None = None

    def __post_init__(self) -> None:
        if self.batch_groups < 1:
            raise ConfigError(f"a batch needs at least 1 group, got {self.batch_groups}")
        if self.batches_ahead < 0 or self.max_staleness < 0:
            raise ConfigError(
                f"batches_ahead and max_staleness must not be negative, got {self.batches_ahead} and "
                f"{self.max_staleness}"
            )
        if self.batches_ahead > self.max_staleness:
            raise ConfigError(
                f"{self.batches_ahead} batches ahead of the learner would be up to {self.batches_ahead} versions old, "
                f"and max_staleness is {self.max_staleness}: they would expire; allow as much, or run less far ahead"
            )
        if self.generate_groups is not None and self.generate_groups < self.batch_groups:
            raise ConfigError(f"{self.generate_groups} groups in flight cannot fill a batch of {self.batch_groups}")

    @property
    def oversamples(self) -> bool:
        """Whether more groups are begun than batches take, so that some expire by design."""
        return self.generate_groups is not None and self.generate_groups > self.batch_groups

    def room(self, num_open: int, num_batches_left: int, *, is_learning: bool) -> int:
        """Return how many more groups may be begun now.

        Args:
            num_open: Groups that are begun and not taken.
            num_batches_left: Batches that the learner will still take.
            is_learning: Whether it works on a batch: whatever begins now then waits for one update at least.
        """
        batches = min(self.batches_ahead + (0 if is_learning else 1), num_batches_left)
        if batches <= 0:
            return 0
        most = (batches - 1) * self.batch_groups + (self.generate_groups or self.batch_groups)
        return max(0, most - num_open)

    def deadline(self, version: int) -> int:
        """Return the last version that may learn from a group begun at `version`."""
        return version + self.max_staleness

    def must_wait(self, ready: Sequence[int], running: Sequence[int], version: int) -> bool:
        """Say whether a batch taken now would let a running group expire.

        Args:
            ready: Deadlines of the finished groups that would not be taken.
            running: Deadlines of the groups that are not finished.
            version: Of the learner's weights.
        """
        if self.oversamples:
            return False
        left, late = np.sort([*ready, *running]), np.sort(running)
        for later in range(self.max_staleness + 1):  # the batches to come hold `later` batches by then
            has_room = np.searchsorted(left, version + later, side="right") <= later * self.batch_groups
            if not has_room and np.searchsorted(late, version + later, side="right"):
                return True
        return False
