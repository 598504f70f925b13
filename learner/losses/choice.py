"""From options to the names and numbers of the loss, checked without loading torch."""

from dataclasses import dataclass

from ...errors import ConfigError
from ...registry import with_absolute_file
from ..options import ActorOptions, AdvantageOptions
from ..run.settings import TrainSettings
from .aggregations import LOSS_AGGREGATIONS
from .corrections import OLDER_NAMES, check
from .policy import DEFAULT_AGGREGATIONS, DUAL_CLIPPED, POLICY_LOSSES, PolicyOptions

CONSTANT_LENGTH = "seq-mean-token-sum-norm"


DEFAULT_BOUNDS = (0.0, 2.0)
OLDER_BOUNDS = (0.5, 5.0)
"""What OpenRLHF had beside the older names."""


@dataclass(frozen=True)
class CorrectionChoice:
    """The importance-sampling correction."""

    level: str
    mode: str
    gating: str
    bounds: tuple[float, float]


@dataclass(frozen=True)
class AggregationChoice:
    """How token losses become one number; a length only where the mode divides by one."""

    name: str
    length: int | None


def correction_choice(options: AdvantageOptions) -> CorrectionChoice:
    """Return the correction; an older name stands for its level and mode.

    One threshold is an upper bound alone, as in OpenRLHF. A divergence takes just that.
    """
    threshold, gating = options.is_correction_threshold, options.is_correction_gating
    if threshold is None:
        threshold = DEFAULT_BOUNDS if options.is_correction_type is None else OLDER_BOUNDS
    if len(threshold) not in (1, 2):
        raise ConfigError(f"--algo.advantage.is_correction_threshold wants HIGH or LOW HIGH, got {threshold}")
    level: str = options.is_correction_level
    mode = options.is_correction_mode
    if options.is_correction_type is not None:
        level, mode = OLDER_NAMES[options.is_correction_type]
        if gating != "ratio":
            raise ConfigError(
                f"--algo.advantage.is_correction_type {options.is_correction_type} bounds the ratio, so it does not go "
                f"with is_correction_gating {gating}; leave one of them out"
            )
    elif level != "off" and gating != "ratio" and len(threshold) == 2:
        raise ConfigError(
            f"--algo.advantage.is_correction_gating {gating} bounds a divergence from above only: give "
            f"is_correction_threshold one number such as 0.005, got {threshold}"
        )
    bounds = (0.0, threshold[0]) if len(threshold) == 1 else (threshold[0], threshold[1])
    if not 0 <= bounds[0] <= bounds[1]:
        raise ConfigError(f"--algo.advantage.is_correction_threshold wants 0 <= LOW <= HIGH, got {threshold}")
    check(level, mode, gating, bounds)
    return CorrectionChoice(level, mode, gating, bounds)


def policy_options(options: ActorOptions) -> PolicyOptions:
    """Return the bounds of the policy loss, refused where the loss would not look at them."""
    name = options.policy_loss_type
    POLICY_LOSSES[name]
    if options.dual_clip is not None and name in POLICY_LOSSES and name not in DUAL_CLIPPED:
        raise ConfigError(f"--actor.dual_clip is for {' and '.join(DUAL_CLIPPED)}; {name} has no such bound")
    low, high = options.eps_clip_low_high or (options.eps_clip, options.eps_clip)
    return PolicyOptions(low, high, options.dual_clip, *options.sapo_temperatures)


def aggregation_choice(settings: TrainSettings) -> AggregationChoice:
    """Return the aggregation; what is not named follows the estimator, then the loss, as their papers have it."""
    actor = settings.actor
    name = actor.loss_agg_mode
    if name is None and settings.algo.advantage.estimator == "dr_grpo":
        name = CONSTANT_LENGTH
    name = name or DEFAULT_AGGREGATIONS.get(actor.policy_loss_type, "token-mean")
    LOSS_AGGREGATIONS[name]
    if actor.loss_agg_length is not None and actor.loss_agg_length < 1:
        raise ConfigError(f"--actor.loss_agg_length must be at least 1, got {actor.loss_agg_length}")
    is_ours = name in LOSS_AGGREGATIONS and name != CONSTANT_LENGTH
    return AggregationChoice(
        with_absolute_file(name), None if is_ours else actor.loss_agg_length or most_sampled_tokens(settings)
    )


def most_sampled_tokens(settings: TrainSettings) -> int:
    """Return the most tokens that one attempt may sample; over all its sequences, where history is rewritten."""
    rollout = settings.rollout
    per_turn = min(rollout.max_new_tokens or settings.data.max_len, settings.data.max_len)
    limits = [rollout.max_episode_tokens, per_turn * rollout.max_turns, settings.data.max_len]
    return min(limit for limit in limits if limit is not None)
