"""From what environments and reward models gave to the one reward per attempt that estimators see.

In this order: sources are weighed and added; the sum is clipped; the penalty for length is subtracted; an attempt that
was cut off loses part of what is left. An attempt's reward depends on that attempt alone.
"""

# A attempts

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...envs.options import RewardOptions
from ...errors import ConfigError, TrajectoryError
from ...executors.episodes.trajectory import EndReason, Trajectory, TurnEnd

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ENDS_AT_A_LIMIT = frozenset(
    {EndReason.TRUNCATED, EndReason.MAX_TURNS, EndReason.MAX_TOKENS, EndReason.MAX_SECONDS, EndReason.CONTEXT}
)
CUT_OFF = frozenset({TurnEnd.TURN_TOKENS, TurnEnd.EPISODE_TOKENS, TurnEnd.CONTEXT_TOKENS})


@dataclass(frozen=True)
class Shaping:
    """How rewards are shaped.

    Attributes:
        env_weight: Of the environment's reward, or remote_url's; None where it gives none.
        model_weight: Of the reward model's; None where there is no model.
        clip_range: For the weighed sum.
        overlong_buffer: Tokens before a limit over which the penalty for length grows; 0 for no penalty.
        overlong_factor: The penalty at the limit.
        stop_coef: What an attempt that was cut off keeps of a positive reward, 0 to 1, or the negative reward it gets.
        mask_truncated: Leave attempts that ended at a limit out.
        max_turn_tokens: The limit of each completion.
        max_episode_tokens: The limit of all completions of an attempt together.
    """

    env_weight: float | None
    model_weight: float | None
    clip_range: tuple[float, float]
    overlong_buffer: float
    overlong_factor: float
    stop_coef: float | None
    mask_truncated: bool
    max_turn_tokens: int
    max_episode_tokens: int

    def __post_init__(self) -> None:
        low, high = self.clip_range
        if not low < high:
            raise ConfigError(f"--reward.clip_range wants a lower and a higher bound, got {low} and {high}")
        limit = min(self.max_turn_tokens, self.max_episode_tokens)
        if not 0 <= self.overlong_buffer <= limit:
            raise ConfigError(
                f"--reward.overlong_buffer_len must lie between 0 and the limit of {limit} sampled tokens "
                f"(--rollout.max_new_tokens, --rollout.max_episode_tokens, --data.max_len), got {self.overlong_buffer}"
            )
        if not 0 <= self.overlong_factor < np.inf:
            raise ConfigError(f"--reward.overlong_penalty_factor must not be negative, got {self.overlong_factor}")
        if self.stop_coef is not None and not -np.inf < self.stop_coef <= 1:
            raise ConfigError(
                "--reward.stop_properly_penalty_coef is what is kept of a reward, 0 to 1, or a negative reward; "
                f"got {self.stop_coef}"
            )


@dataclass(frozen=True)
class ShapedRewards:
    """One reward for each attempt of a step, in the order of its trajectories.

    Attributes:
        rewards_A: float64; NaN exactly where it is not valid.
        is_valid_A: bool; the attempt did not fail, has a reward from every source, and is not masked as truncated.
        raw_rewards_A: float64, the weighed sum of the sources, neither clipped nor penalised; NaN where not known.
        metrics: What to log.
    """

    rewards_A: Floats
    is_valid_A: Bools
    raw_rewards_A: Floats
    metrics: dict[str, float]


def shaping(
    options: RewardOptions,
    *,
    mask_truncated: bool,
    has_env_reward: bool,
    max_turn_tokens: int,
    max_episode_tokens: int,
) -> Shaping:
    """Return how these options shape rewards.

    Args:
        options: The user's.
        mask_truncated: Leave attempts that ended at a limit out.
        has_env_reward: Whether the environment or remote_url gives a reward; without, the model's is all there is.
        max_turn_tokens: --rollout.max_new_tokens, by default --data.max_len.
        max_episode_tokens: --rollout.max_episode_tokens, by default --data.max_len.

    Raises:
        ConfigError: A number is out of its range, or the weights are not as many as the sources.
    """
    has_model = options.model_name_or_path is not None
    sources = ["the environment or --reward.remote_url"] * has_env_reward
    sources += ["--reward.model_name_or_path"] * has_model
    weights = options.weights or (1.0,) * len(sources)
    if not sources:
        raise ConfigError(
            "nothing gives a reward: the environment has none of its own; give --reward.remote_url or "
            "--reward.model_name_or_path"
        )
    if len(weights) != len(sources):
        raise ConfigError(
            f"--reward.weights wants one weight for each source of rewards ({' and '.join(sources)}), "
            f"got {len(weights)}: {' '.join(map(str, weights))}"
        )
    if not np.isfinite(weights).all() or not any(weights):
        raise ConfigError(f"--reward.weights must be finite and not all 0, got {' '.join(map(str, weights))}")
    return Shaping(
        env_weight=weights[0] if has_env_reward else None,
        model_weight=weights[-1] if has_model else None,
        clip_range=options.clip_range,
        overlong_buffer=0.0 if options.overlong_buffer_len is None else options.overlong_buffer_len,
        overlong_factor=options.overlong_penalty_factor,
        stop_coef=options.stop_properly_penalty_coef,
        mask_truncated=mask_truncated,
        max_turn_tokens=max_turn_tokens,
        max_episode_tokens=max_episode_tokens,
    )


def shape_rewards(
    trajectories: Sequence[Trajectory], shaping: Shaping, model_scores_A: ArrayLike | None = None
) -> ShapedRewards:
    """Return each attempt's reward.

    Args:
        trajectories: A step's attempts, failed ones included.
        shaping: What to do.
        model_scores_A: The reward model's, NaN where it gave none: such an attempt is left out and counted.

    Raises:
        TrajectoryError: Scores are wanted and missing, not wanted, or not one per attempt.
    """
    has_finished_A = np.array([t.is_valid for t in trajectories], bool)
    env_A = np.array([t.reward if t.is_valid else np.nan for t in trajectories])
    model_A = _checked_scores(model_scores_A, shaping, len(trajectories))
    is_scored_A = has_finished_A & np.isfinite(model_A)
    raw_A = np.where(is_scored_A, (shaping.env_weight or 0.0) * env_A + (shaping.model_weight or 0.0) * model_A, np.nan)
    clipped_A = np.clip(raw_A, *shaping.clip_range)
    overlong_A = np.array([overlong_penalty(t, shaping) if t.is_valid else np.nan for t in trajectories])
    is_truncated_A = np.array([t.is_valid and is_truncated(t) for t in trajectories], bool)
    shaped_A = _stop_properly(clipped_A - overlong_A, is_truncated_A, shaping.stop_coef)
    is_valid_A = is_scored_A & ~is_truncated_A if shaping.mask_truncated else is_scored_A
    rewards_A = np.where(is_valid_A, shaped_A, np.nan)

    metrics = {
        "attempts/truncated": float(is_truncated_A.sum()),
        "attempts/masked_truncated": float((is_scored_A & ~is_valid_A).sum()),
        "attempts/unscored": float((has_finished_A & ~is_scored_A).sum()),
    }
    if is_scored_A.any():  # all of these before the mask, so that they show what it hides
        if shaping.env_weight is not None:
            metrics["reward/env"] = float(env_A[is_scored_A].mean())
        if shaping.model_weight is not None:
            metrics["reward/model"] = float(model_A[is_scored_A].mean())
        metrics["reward/clipped"] = float((clipped_A != raw_A)[is_scored_A].mean())
        metrics["reward/penalty_overlong"] = float(overlong_A[is_scored_A].mean())
        metrics["reward/penalty_stop"] = float((clipped_A - overlong_A - shaped_A)[is_scored_A].mean())
    return ShapedRewards(rewards_A, is_valid_A, raw_A, metrics)


def is_truncated(trajectory: Trajectory) -> bool:
    """Whether an attempt ended at a limit instead of by itself.

    A limit of the run (turns, tokens, seconds, context) or of the environment's own, or a last completion that was
    cut off, whatever the environment made of it (OpenRLHF knows only the last of these). A completion that was cut
    off on the way does not count where the episode went on and ended by itself.
    """
    was_cut_off = bool(trajectory.turn_ends) and trajectory.turn_ends[-1] in CUT_OFF
    return trajectory.end_reason in ENDS_AT_A_LIMIT or was_cut_off


def overlong_penalty(trajectory: Trajectory, shaping: Shaping) -> float:
    """Return the penalty for length, 0 to the factor (DAPO's soft overlong punishment, arXiv:2503.14476).

    It grows linearly over the last tokens before a limit, whichever of the two is nearer: that of a completion, held
    against the longest one, or that of the attempt, held against their sum. Only sampled tokens count (OpenRLHF counts
    what the environment said between turns too, and verl goes on beyond the full penalty).
    """
    if not shaping.overlong_buffer:
        return 0.0
    turns = [s.turn[s.is_action] for s in trajectory.sequences if s.num_actions]
    if not turns:
        return 0.0
    longest = int(np.bincount(np.concatenate(turns)).max())
    room = min(shaping.max_turn_tokens - longest, shaping.max_episode_tokens - trajectory.num_actions)
    share = (shaping.overlong_buffer - room) / shaping.overlong_buffer
    return shaping.overlong_factor * min(max(share, 0.0), 1.0)


def _stop_properly(rewards_A: Floats, is_truncated_A: Bools, coef: float | None) -> Floats:
    """Scale or set the rewards of attempts that were cut off, but never raise one (OpenRLHF makes -1 a -0.5)."""
    if coef is None:
        return rewards_A
    punished_A = np.minimum(rewards_A, rewards_A * coef if coef >= 0 else coef)
    return np.where(is_truncated_A, punished_A, rewards_A)


def _checked_scores(model_scores_A: ArrayLike | None, shaping: Shaping, num_attempts: int) -> Floats:
    if (model_scores_A is None) != (shaping.model_weight is None):
        given = "no scores of one came" if model_scores_A is None else "its scores came"
        raise TrajectoryError(f"the weight of the reward model is {shaping.model_weight}, and {given}")
    if model_scores_A is None:
        return np.zeros(num_attempts)
    scores = np.asarray(model_scores_A, np.float64)
    if scores.shape != (num_attempts,):
        raise TrajectoryError(f"one score of the reward model for each of {num_attempts} attempts, got {scores.shape}")
    return scores
