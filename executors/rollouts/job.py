"""What a dispatcher has done: attempts at one task, until all have ended."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ...agents.base import Sampling
from ...envs.task import Task
from ..episodes.trajectory import Trajectory
from .buffer import Group
from .draws import Draw


@dataclass
class Job:
    """Attempts at one task until all have ended.

    Attributes:
        version: Of the published weights when it was begun.
        draw: Where it came from; None for what the learner will not take.
        done: Called with the group instead of keeping it for the learner.
    """

    task: Task
    numbers: tuple[int, ...]
    sampling: Sampling
    version: int
    draw: Draw | None = None
    done: Callable[[Group], None] | None = None
    ended: list[Trajectory] = field(default_factory=list)
    priority: int | None = None  # number of its first order, so that no tail of a batch queues behind later ones
    num_orders: int = 0
    until: float = math.inf  # when its lease ends

    @property
    def missing(self) -> tuple[int, ...]:
        """The attempts that have not ended."""
        return tuple(sorted(set(self.numbers) - {t.attempt for t in self.ended}))
