"""Scores a policy on held-out tasks."""

# N tasks

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Sampling
from ...envs.task import Task
from ...executors.rollouts.buffer import Group
from ...executors.rollouts.rollouts import Rollouts
from ..run.progress import Progress
from .attempts import member_means
from .pass_at_k import Tries, mean_pass_at

SOLVED = 0.99
"""Scores from here on count as solved; some graders lose a little to rounding."""


@dataclass(frozen=True)
class EvalResult:
    """What was scored; failed attempts are counted and not averaged.

    Attributes:
        reward: Mean over tasks of the mean over their valid attempts; None when all failed.
        num_tasks, num_attempts, num_failed: Counts.
        groups: The episodes.
        by_member: As `reward`, of each member of a mixture that has any.
        pass_at: From k to the mean of pass@k over the tasks with so many valid attempts. Empty where the environment's
            scores, from 0 to 1, do not tell what is solved.
    """

    reward: float | None
    num_tasks: int
    num_attempts: int
    num_failed: int
    groups: tuple[Group, ...]
    by_member: Mapping[str, float] = field(default_factory=dict)
    pass_at: Mapping[int, float] = field(default_factory=dict)


def evaluate(
    rollouts: Rollouts,
    tasks: Sequence[Task],
    sampling: Sampling,
    attempts_per_task: int,
    progress: Progress,
    should_stop: Callable[[], bool],
    on_idle: Callable[[], None] = lambda: None,
    judge: Callable[[Sequence[Group]], NDArray[np.float64]] | None = None,
    members: Sequence[str] = (),
    pass_at: Sequence[int] = (),
    keep: Callable[[Sequence[Group]], None] = lambda groups: None,
) -> EvalResult | None:
    """Run all tasks and return the scores, in the order of the tasks; None when told to stop.

    `keep` gets the groups as they end, whatever comes then.
    `judge` gives each attempt's reward, NaN where it has none; by default it is the environment's. `members` are those
    of a mixture, `pass_at` each k of pass@k; by default 1 and the attempts at each task.
    """
    total, num_done = len(tasks), 0

    def note(ended: Sequence[Group]) -> None:
        nonlocal num_done
        num_done += len(ended)
        keep(ended)
        progress.detail(f"{num_done}/{total} tasks")

    done = rollouts.run_all(tasks, tuple(range(attempts_per_task)), sampling, should_stop, note, on_idle)
    if done is None:
        return None
    groups = tuple(done)
    rewards_A = _own_rewards(groups) if judge is None else judge(groups)
    places = np.cumsum([len(group.trajectories) for group in groups])[:-1]
    known = [part[np.isfinite(part)] for part in np.split(rewards_A, places)]
    mean_N = np.array([part.mean() if len(part) else np.nan for part in known])
    means = mean_N[np.isfinite(mean_N)]
    num_attempts = sum(len(group.trajectories) for group in groups)
    return EvalResult(
        reward=float(np.mean(means)) if len(means) else None,
        num_tasks=len(groups),
        num_attempts=num_attempts,
        num_failed=num_attempts - sum(group.num_valid for group in groups),
        groups=groups,
        by_member=member_means(members, [group.task.id for group in groups], mean_N),
        pass_at=_pass_at(groups, pass_at or (1, attempts_per_task)) if judge is None else {},
    )


def _pass_at(groups: Sequence[Group], ks: Sequence[int]) -> dict[int, float]:
    scores = [[t.score for t in group.trajectories if t.is_valid] for group in groups]
    if any(score is None or not 0 <= score <= 1 for task in scores for score in task):
        return {}
    problems = [Tries(len(task), sum(score is not None and score >= SOLVED for score in task)) for task in scores]
    asked = ((k, [tries for tries in problems if tries.num_tries >= k]) for k in sorted({*ks}))
    return {k: mean_pass_at(known, k) for k, known in asked if known}


def _own_rewards(groups: Sequence[Group]) -> NDArray[np.float64]:
    return np.array([t.reward if t.is_valid else np.nan for group in groups for t in group.trajectories])
