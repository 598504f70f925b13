"""A step's groups, taken from the rollouts until the batch is full, and what each attempt is worth."""

# A attempts

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...executors.episodes.trajectory import Trajectory
from ...executors.rollouts.buffer import Finished, Group
from ..loop_parts import InterruptedStepError, LoopSettings, Parts
from ..rewards.shaping import Floats
from .rewards import StepRewards, model_scores_of, verdicts, weighed


@dataclass(frozen=True)
class Gathered:
    """What a step learns from, and what it does not.

    Attributes:
        groups: Those that are learned from.
        rewards: Of their attempts.
        trajectories: All attempts that came, also of groups that were filtered out or dropped.
        metrics: Of the rewards and of the filter, over all groups but the dropped.
        takes: What was taken each time.
    """

    groups: list[Group]
    rewards: StepRewards
    trajectories: list[Trajectory]
    metrics: dict[str, float]
    takes: tuple[tuple[Finished, ...], ...] = ()


def gather(parts: Parts, settings: LoopSettings, on_idle: Callable[[], None]) -> Gathered:
    """Take groups until the batch is full, late, or no task is left; with a filter, more for those that it leaves out.

    Raises:
        InterruptedStepError: The run was asked to stop.
        TrajectoryError: Too many attempts failed.
        EngineDeadError: No engine lives any more.
    """
    wanted, num_kept = settings.batches.tasks_per_step, 0
    groups: list[Group] = []
    takes: list[tuple[Finished, ...]] = []
    dropped: list[Trajectory] = []
    scores: list[Floats] = []
    while num_kept < wanted:
        taken = parts.rollouts.take(wanted - num_kept, parts.interrupt.is_set, on_idle)
        if taken is None:
            raise InterruptedStepError
        dropped += [t for group in taken.dropped for t in group.trajectories]
        if not taken.finished:
            break
        takes.append(taken.finished)
        new = [finished.group for finished in taken.finished]
        scores_A = model_scores_of(parts, new)
        if scores_A is not None:
            scores.append(scores_A)
        groups += new
        num_kept += sum(verdicts(settings, new, scores_A).is_kept) if settings.filters else len(new)
        if taken.is_late and num_kept:
            break
    gathered = _joined(settings, groups, np.concatenate(scores) if scores else None, dropped, parts.members)
    return replace(gathered, takes=tuple(takes))


def _joined(
    settings: LoopSettings,
    groups: list[Group],
    scores_A: Floats | None,
    dropped: list[Trajectory],
    members: Sequence[str],
) -> Gathered:
    """Weigh all groups together, and keep those that the filter keeps."""
    every = weighed(settings, groups, scores_A, members)
    trajectories = [t for group in groups for t in group.trajectories]
    if not settings.filters:
        return Gathered(groups, every, trajectories + dropped, every.metrics)
    is_kept = verdicts(settings, groups, scores_A).is_kept
    of_attempt = np.repeat(is_kept, [len(group.trajectories) for group in groups]).astype(bool)
    kept = StepRewards(every.rewards_A[of_attempt], every.is_valid_A[of_attempt], every.metrics)
    return Gathered(
        [group for group, keeps in zip(groups, is_kept, strict=True) if keeps],
        kept,
        trajectories + dropped,
        every.metrics,
    )
