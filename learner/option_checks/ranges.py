"""Which numbers an option may have, whatever the others say; torch-free, so that a mistake shows at once."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ...errors import ConfigError
from ..run.settings import TrainSettings


@dataclass(frozen=True)
class Range:
    """Numbers that an option may have; all are finite."""

    wanted: str  # after "must"
    holds: Callable[[float], bool]


COUNT = Range("be at least 1", lambda number: number >= 1)
NOT_NEGATIVE = Range("not be negative", lambda number: number >= 0)
POSITIVE = Range("be positive", lambda number: number > 0)
OR_NEVER = Range("be -1 (none) or more", lambda number: number >= -1)
SHARE = Range("lie between 0 and 1", lambda number: 0 <= number <= 1)
SHARE_BELOW_1 = Range("lie between 0 and 1, and be less than 1", lambda number: 0 <= number < 1)
SHARE_ABOVE_0 = Range("lie between 0 and 1, and be more than 0", lambda number: 0 < number <= 1)
ABOVE_1 = Range("be greater than 1", lambda number: number > 1)
NUMBER = Range("be a finite number", lambda number: True)

_TRAINED: Mapping[str, Range] = {  # of actor and critic alike
    "num_nodes": COUNT,
    "num_gpus_per_node": COUNT,
    "adam.lr": NOT_NEGATIVE,
    "adam.betas": SHARE_BELOW_1,
    "adam.eps": POSITIVE,
    "adam.weight_decay": NOT_NEGATIVE,
    "muon.lr": POSITIVE,
    "muon.momentum": SHARE_BELOW_1,
    "muon.ns_steps": COUNT,
    "lr_warmup_ratio": SHARE,
    "min_lr_ratio": SHARE,
    "max_norm": NOT_NEGATIVE,
}

RANGES: Mapping[str, Range] = {
    **{f"{role}.{name}": limits for role in ("actor", "critic") for name, limits in _TRAINED.items()},
    "actor.loss_agg_length": COUNT,
    "actor.eps_clip": SHARE,
    "actor.eps_clip_low_high": NOT_NEGATIVE,
    "actor.dual_clip": ABOVE_1,
    "actor.sapo_temperatures": POSITIVE,
    "actor.entropy_coef": NOT_NEGATIVE,
    "actor.aux_loss_coef": NOT_NEGATIVE,
    "critic.value_clip": POSITIVE,
    "critic.freezing_steps": OR_NEVER,
    "data.max_samples": COUNT,
    "data.max_len": COUNT,
    "data.max_images_per_prompt": NOT_NEGATIVE,
    "reward.timeout_s": POSITIVE,
    "reward.num_nodes": COUNT,
    "reward.num_gpus_per_node": COUNT,
    "reward.weights": NUMBER,
    "reward.overlong_buffer_len": NOT_NEGATIVE,
    "reward.overlong_penalty_factor": NOT_NEGATIVE,
    "reward.stop_properly_penalty_coef": NUMBER,
    "rollout.batch_size": COUNT,
    "rollout.n_samples_per_prompt": COUNT,
    "rollout.max_new_tokens": COUNT,
    "rollout.max_turns": COUNT,
    "rollout.max_episode_tokens": COUNT,
    "rollout.max_seconds": POSITIVE,
    "rollout.generate_timeout_s": POSITIVE,
    "rollout.temperature": NOT_NEGATIVE,
    "rollout.top_p": NUMBER,
    "rollout.branch_at": NOT_NEGATIVE,
    "rollout.branch_factor": Range("be at least 2", lambda number: number >= 2),
    "rollout.max_retries": NOT_NEGATIVE,
    "train.batch_size": COUNT,
    "train.max_tokens_per_gpu": COUNT,
    "train.micro_batch_size": COUNT,
    "train.max_epochs": COUNT,
    "train.num_episodes": COUNT,
    "train.max_steps": OR_NEVER,
    "train.seed": NOT_NEGATIVE,
    "train.ema_beta": SHARE_BELOW_1,
    "train.max_failed_fraction": SHARE,
    "rollout.max_failed_attempts": SHARE,
    "rollout.vllm_generate_batch_size": COUNT,
    "rollout.straggler_timeout_s": POSITIVE,
    "train.async_queue_size": COUNT,
    "train.max_staleness": NOT_NEGATIVE,
    "algo.advantage.gamma": SHARE,
    "algo.advantage.lambd": SHARE,
    "algo.advantage.turn_group_weight": NOT_NEGATIVE,
    "algo.kl.init_coef": NOT_NEGATIVE,
    "algo.kl.target": POSITIVE,
    "algo.kl.horizon": COUNT,
    "eval.steps": OR_NEVER,
    "eval.max_samples": COUNT,
    "eval.temperature": NOT_NEGATIVE,
    "eval.n_samples_per_prompt": COUNT,
    "eval.pass_at": COUNT,
    "vllm.num_engines": COUNT,
    "vllm.tensor_parallel_size": COUNT,
    "vllm.gpu_memory_utilization": SHARE_ABOVE_0,
    "vllm.max_num_seqs": COUNT,
    "vllm.kv_cache_gib": POSITIVE,
    "vllm.sync_timeout_s": POSITIVE,
    "vllm.start_timeout_s": POSITIVE,
    "vllm.hang_timeout_s": POSITIVE,
    "vllm.max_restarts": NOT_NEGATIVE,
    "ds.lora.rank": NOT_NEGATIVE,
    "ds.lora.alpha": COUNT,
    "ds.lora.dropout": SHARE_BELOW_1,
    "ds.timeout_s": POSITIVE,
    "ref.num_nodes": COUNT,
    "ref.num_gpus_per_node": COUNT,
    "teacher.num_engines": COUNT,
    "teacher.gpu_memory_utilization": SHARE_ABOVE_0,
    "env_pool.num_threads": COUNT,
    "env_pool.num_processes": COUNT,
    "env_pool.max_memory_gib": POSITIVE,
    "env_pool.timeout_s": POSITIVE,
    "env_pool.max_concurrency": COUNT,
    "env_pool.num_workers": NOT_NEGATIVE,
    "env_pool.num_cpus": NOT_NEGATIVE,
    "env_pool.start_timeout_s": POSITIVE,
    "env_pool.max_restarts": NOT_NEGATIVE,
    "ckpt.save_steps": OR_NEVER,
    "ckpt.max_num": COUNT,
    "logger.trajectories_per_step": OR_NEVER,
}
"""By the option's name; bounds that may be infinite are checked where they are used."""


def check_ranges(settings: TrainSettings) -> None:
    """Refuse numbers that no option can have.

    Raises:
        ConfigError: It names the option, what was wanted and what came.
    """
    for name, limits in RANGES.items():
        value = option_value(settings, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not (math.isfinite(number) and limits.holds(number)):
                raise ConfigError(f"--{name} must {limits.wanted}, got {number}")


def option_value(settings: TrainSettings, name: str) -> Any:  # Any: options have many types
    """Return an option by its dotted name."""
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def changed_options(settings: TrainSettings, name: str) -> list[str]:
    """Return the names of the options, this one or those in this group, that differ from their defaults."""
    group, _, last = name.rpartition(".")
    value = option_value(settings, name)
    if is_dataclass(value):
        return [found for f in fields(value) for found in changed_options(settings, f"{name}.{f.name}")]
    return [name] if value != _default(settings, group, last) else []


def _default(settings: TrainSettings, group: str, last: str) -> Any:
    """Return what an option is if nobody gives it; nested groups may have defaults of the group around them."""
    first, *rest = [*group.split("."), last]
    value: Any = type(getattr(settings, first))()
    for part in rest:
        value = getattr(value, part)
    return value
