"""From a step's finished groups to the rewards and the attempts that count."""

# A attempts

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...executors.rollouts.buffer import Group
from ..loop_parts import InterruptedStepError, LoopSettings, Parts
from ..rewards.scoring import model_scores, reward_batch
from ..rewards.shaping import Floats, ShapedRewards, shape_rewards
from .attempts import member_means
from .filtering import Filtered, filter_groups


@dataclass(frozen=True)
class StepRewards:
    """What each attempt of a step is worth.

    Attributes:
        rewards_A: float64; NaN where it does not count.
        is_valid_A: bool; it did not fail and was not left out.
        metrics: What to log.
    """

    rewards_A: NDArray[np.float64]
    is_valid_A: NDArray[np.bool_]
    metrics: dict[str, float]


def model_scores_of(parts: Parts, groups: Sequence[Group]) -> Floats | None:
    """Ask the reward model, if there is one, for a score of each attempt; NaN where it has none.

    Raises:
        InterruptedStepError: The run was asked to stop.
    """
    if parts.reward_reader is None:
        return None
    reader, trajectories = parts.reward_reader, [t for group in groups for t in group.trajectories]
    batch = reward_batch(trajectories, reader.recode, reader.max_tokens)
    values_N = parts.roles["reward"].batch_scores(batch, "reward")
    if values_N is None:
        raise InterruptedStepError
    return model_scores(batch, values_N, len(trajectories), reader.moments)


def shaped_rewards(parts: Parts, settings: LoopSettings, groups: Sequence[Group]) -> ShapedRewards:
    """Ask the reward model if there is one, and shape the rewards.

    Raises:
        InterruptedStepError: The run was asked to stop.
    """
    return _shaped(settings, groups, model_scores_of(parts, groups))


def verdicts(settings: LoopSettings, groups: Sequence[Group], scores_A: Floats | None) -> Filtered:
    """Say which groups the filter keeps."""
    shaped = _shaped(settings, groups, scores_A)
    return filter_groups(groups, settings.algo, shaped.raw_rewards_A, shaped.is_valid_A)


def weighed(
    settings: LoopSettings, groups: Sequence[Group], scores_A: Floats | None, members: Sequence[str] = ()
) -> StepRewards:
    """Shape the rewards and leave out what is filtered; of a mixture, log those of each member, too."""
    shaped = _shaped(settings, groups, scores_A)
    filtered = filter_groups(groups, settings.algo, shaped.raw_rewards_A, shaped.is_valid_A)
    rewards_A = np.where(filtered.is_valid_A, shaped.rewards_A, np.nan)
    metrics = shaped.metrics | filtered.metrics
    if shaped.is_valid_A.any():
        before_A = shaped.rewards_A[shaped.is_valid_A]  # the filter would hide how the policy does
        metrics |= {"reward/mean": float(before_A.mean()), "reward/std": float(before_A.std())}
        task_ids = [group.task.id for group in groups for _ in group.trajectories]
        means = member_means(members, task_ids, np.where(shaped.is_valid_A, shaped.rewards_A, np.nan))
        metrics |= {f"reward/{member}/mean": mean for member, mean in means.items()}
    return StepRewards(rewards_A, filtered.is_valid_A, metrics)


def _shaped(settings: LoopSettings, groups: Sequence[Group], scores_A: Floats | None) -> ShapedRewards:
    return shape_rewards([t for group in groups for t in group.trajectories], settings.shaping, scores_A)
