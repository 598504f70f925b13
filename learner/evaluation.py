"""Scores a policy on held-out tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..agents.base import Sampling
from ..envs.task import Task
from ..executors.buffer import Group
from ..executors.fleet import Attempts, Fleet
from .progress import Progress


@dataclass(frozen=True)
class EvalResult:
    """What was scored; failed attempts are counted and not averaged.

    Attributes:
        reward: Mean over tasks of the mean over their valid attempts; None when all failed.
        num_tasks, num_attempts, num_failed: Counts.
        groups: The episodes.
    """

    reward: float | None
    num_tasks: int
    num_attempts: int
    num_failed: int
    groups: tuple[Group, ...]


def evaluate(
    fleet: Fleet,
    tasks: Sequence[Task],
    sampling: Sampling,
    attempts_per_task: int,
    progress: Progress,
    should_stop: Callable[[], bool],
) -> EvalResult | None:
    """Run all tasks and return the scores, in the order of the tasks; None when told to stop."""
    numbers = tuple(range(attempts_per_task))
    done: dict[int, Group] = {}
    for place, group in fleet.run([Attempts(task, numbers) for task in tasks], sampling, should_stop):
        done[place] = group
        progress.detail(f"{len(done)}/{len(tasks)} tasks")
    if len(done) < len(tasks):
        return None
    groups = tuple(done[place] for place in range(len(tasks)))
    means = [np.mean([t.reward for t in group.trajectories if t.is_valid]) for group in groups if group.num_valid]
    num_attempts = sum(len(group.trajectories) for group in groups)
    return EvalResult(
        reward=float(np.mean(means)) if means else None,
        num_tasks=len(groups),
        num_attempts=num_attempts,
        num_failed=num_attempts - sum(group.num_valid for group in groups),
        groups=groups,
    )
