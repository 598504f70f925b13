"""Whether the options that pace rollouts fit each other; torch-free, so that a mistake shows at once."""

from ...errors import ConfigError
from ..run.settings import TrainSettings


def check_pace(settings: TrainSettings) -> None:
    """Refuse rollouts ahead of the learner that could never be learned from."""
    train, rollout = settings.train, settings.rollout
    if train.async_enable and train.max_staleness == 0:
        raise ConfigError(
            "--train.max_staleness 0 lets nothing be learned from that was sampled ahead of the learner, which is what "
            "--train.async_enable is for; give 1 or more, or leave both out"
        )
    if train.max_staleness is not None and train.async_queue_size > train.max_staleness:
        raise ConfigError(
            f"--train.async_queue_size {train.async_queue_size} batches ahead of the learner would be as many versions "
            f"old, and --train.max_staleness is {train.max_staleness}: they would expire; raise it, or run less ahead"
        )
    if rollout.vllm_generate_batch_size is not None and rollout.vllm_generate_batch_size < rollout.batch_size:
        raise ConfigError(
            f"--rollout.vllm_generate_batch_size {rollout.vllm_generate_batch_size} tasks in flight cannot fill a step "
            f"of --rollout.batch_size {rollout.batch_size}; give as many or more"
        )


def pace_complaints(settings: TrainSettings) -> list[str]:
    """Return what can be meant and rarely is."""
    train, rollout, found = settings.train, settings.rollout, []
    if train.async_enable and settings.algo.advantage.is_correction_level == "off":
        found.append(
            "--train.async_enable with --algo.advantage.is_correction_level off: tokens of older weights are not "
            "corrected for; the ratio's denominator is the policy that sampled them, so that it is clipped at least"
        )
    more = rollout.vllm_generate_batch_size
    if more is not None and more > rollout.batch_size and not settings.algo.dynamic_filtering_enable:
        found.append(
            f"--rollout.vllm_generate_batch_size {more} without --algo.dynamic_filtering_enable: each step takes the "
            f"first {rollout.batch_size} tasks that finish, so short episodes are learned from more often"
        )
    return found
