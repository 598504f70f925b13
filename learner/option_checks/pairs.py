"""Options that have no effect, or no meaning, beside others; torch-free, so that a mistake shows at once."""

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import ConfigError
from ..advantages import NEEDS_TEACHER, NEEDS_VALUES
from ..losses.choice import CONSTANT_LENGTH, aggregation_choice
from ..ranks.schedule import SCHEDULES
from ..run.settings import TrainSettings
from .agent import has_agent_file, has_prompt_env, has_user_agent
from .algo import check_correction, kl_complaints
from .branches import branch_complaints, check_branches
from .determinism import check_determinism
from .pace import check_pace, pace_complaints
from .ranges import changed_options

NOT_DIVIDED = ("dr_grpo", "rloo", "maxrl", "flash_reinforce", *NEEDS_TEACHER)
"""Estimators of ours that divide by no deviation in any case."""


@dataclass(frozen=True)
class Need:
    """Options that are read only where something holds.

    Attributes:
        options: Names of options, or of groups of them.
        holds: What must hold where one of them differs from its default.
        why: What the user reads after the option's name; may hold {s.group.option}.
    """

    options: tuple[str, ...]
    holds: Callable[[TrainSettings], bool]
    why: str


def _has_critic(s: TrainSettings) -> bool:
    return s.algo.advantage.estimator in NEEDS_VALUES


def _has_teacher(s: TrainSettings) -> bool:
    return s.algo.advantage.estimator in NEEDS_TEACHER


def _evaluates(s: TrainSettings) -> bool:
    return s.eval.at_start or s.eval.at_end or s.eval.steps > 0


NEEDS = (
    Need(
        ("critic",),
        _has_critic,
        "is for a critic, and --algo.advantage.estimator {s.algo.advantage.estimator} has no use for a critic; "
        f"{' and '.join(NEEDS_VALUES)} have",
    ),
    Need(
        ("teacher",),
        _has_teacher,
        "is for a teacher, and --algo.advantage.estimator {s.algo.advantage.estimator} has no use for one; "
        f"{' and '.join(NEEDS_TEACHER)} has",
    ),
    Need(
        ("ref", "algo.kl"),
        lambda s: s.algo.kl.init_coef != 0,
        "has no effect where --algo.kl.init_coef 0 leaves the reference model out",
    ),
    Need(
        ("ref.num_nodes", "ref.num_gpus_per_node", "ref.offload"),
        lambda s: not s.ds.lora.rank or s.train.colocate_all,
        "is for a reference of its own, and under --ds.lora.rank the actor's base weights are the reference",
    ),
    *(
        Need(
            (f"{role}.num_nodes",),
            lambda s, role=role: getattr(s, role).num_gpus_per_node is not None,  # type: ignore[misc]
            f"is for ranks of its own: give --{role}.num_gpus_per_node too",
        )
        for role in ("ref", "critic", "reward")
    ),
    Need(
        ("reward.num_nodes", "reward.num_gpus_per_node", "reward.offload", "reward.normalize_enable"),
        lambda s: s.reward.model_name_or_path is not None,
        "is for a reward model: give --reward.model_name_or_path",
    ),
    Need(("reward.timeout_s",), lambda s: s.reward.remote_url is not None, "is for calls of --reward.remote_url"),
    Need(
        ("reward.overlong_penalty_factor",),
        lambda s: bool(s.reward.overlong_buffer_len),
        "has no effect without --reward.overlong_buffer_len",
    ),
    Need(
        ("reward.stop_properly_penalty_coef",),
        lambda s: not s.algo.advantage.mask_truncated,
        "has no effect where --algo.advantage.mask_truncated leaves the attempts out that it is for",
    ),
    Need(
        ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"),
        lambda s: not _has_teacher(s),
        "has no effect under --algo.advantage.estimator {s.algo.advantage.estimator}, which learns from no reward",
    ),
    Need(
        ("reward.overlong_buffer_len",),
        lambda s: s.algo.advantage.estimator != "maxrl",
        "makes rewards negative, which --algo.advantage.estimator maxrl cannot take; leave one of them out",
    ),
    Need(
        ("reward.stop_properly_penalty_coef",),
        lambda s: s.algo.advantage.estimator != "maxrl" or (s.reward.stop_properly_penalty_coef or 0) >= 0,
        "makes rewards negative, which --algo.advantage.estimator maxrl cannot take; give 0 to 1",
    ),
    Need(("algo.kl.horizon",), lambda s: s.algo.kl.target is not None, "has no effect without --algo.kl.target"),
    Need(
        ("algo.kl.unbiased_gradient",),
        lambda s: s.algo.kl.use_loss,
        "is for the KL in the loss; add --algo.kl.use_loss",
    ),
    Need(
        ("algo.advantage.no_std_norm",),
        lambda s: s.algo.advantage.estimator not in NOT_DIVIDED,
        "has no effect under --algo.advantage.estimator {s.algo.advantage.estimator}, which divides by no deviation",
    ),
    Need(
        ("algo.advantage.turn_group_weight",),
        lambda s: s.algo.advantage.credit == "turn_group",
        "has no effect without --algo.advantage.credit turn_group",
    ),
    Need(
        ("algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"),
        lambda s: s.algo.advantage.is_correction_type is None,
        "has no effect beside --algo.advantage.is_correction_type, which stands for a level and a mode; give one",
    ),
    Need(
        ("algo.advantage.is_correction_mode", "algo.advantage.is_correction_gating"),
        lambda s: s.algo.advantage.is_correction_level != "off",
        "has no effect where --algo.advantage.is_correction_level off corrects nothing",
    ),
    Need(
        ("algo.dynamic_filtering_enable",),
        lambda s: s.rollout.n_samples_per_prompt > 1,
        "leaves every task out that has one attempt; give --rollout.n_samples_per_prompt 2 or more",
    ),
    Need(
        ("algo.dynamic_filtering_enable",),
        lambda s: not (_has_teacher(s) and has_prompt_env(s) and s.reward == type(s.reward)()),
        "compares rewards, and --algo.advantage.estimator {s.algo.advantage.estimator} runs without any here; "
        "leave it out, or give --reward.remote_url",
    ),
    Need(
        ("actor.eps_clip",),
        lambda s: s.actor.eps_clip_low_high is None,
        "has no effect beside --actor.eps_clip_low_high; give one of them",
    ),
    Need(
        ("actor.eps_clip", "actor.eps_clip_low_high"),
        lambda s: s.actor.policy_loss_type != "sapo",
        "has no effect under --actor.policy_loss_type sapo, which clips nothing; it has --actor.sapo_temperatures",
    ),
    Need(
        ("actor.sapo_temperatures",),
        lambda s: s.actor.policy_loss_type == "sapo" or ":" in s.actor.policy_loss_type,
        "has no effect under --actor.policy_loss_type {s.actor.policy_loss_type}; it is for sapo",
    ),
    Need(
        ("actor.loss_agg_length",),
        lambda s: aggregation_choice(s).length is not None,
        f"has no effect without --actor.loss_agg_mode {CONSTANT_LENGTH}",
    ),
    *(
        Need(
            (f"{role}.muon",),
            lambda s, role=role: getattr(s, role).optim == "muon",  # type: ignore[misc]
            f"has no effect without --{role}.optim muon",
        )
        for role in ("actor", "critic")
    ),
    *(
        Need(
            (f"{role}.min_lr_ratio",),
            lambda s, role=role: SCHEDULES.get(getattr(s, role).lr_scheduler, "") is not None,  # type: ignore[misc]
            f"has no effect under --{role}.lr_scheduler {{s.{role}.lr_scheduler}}, which has no lowest rate",
        )
        for role in ("actor", "critic")
    ),
    *(
        Need(
            (f"{role}.lr_warmup_ratio",),
            lambda s, role=role: getattr(s, role).lr_scheduler != "constant" or not getattr(s, role).lr_warmup_ratio,  # type: ignore[misc]
            f"has no effect under --{role}.lr_scheduler constant; there is constant_with_warmup",
        )
        for role in ("actor", "critic")
    ),
    Need(
        ("ds.lora.alpha", "ds.lora.target_modules", "ds.lora.dropout", "ds.lora.sync"),
        lambda s: s.ds.lora.rank != 0,
        "has no effect without adapters: give --ds.lora.rank, such as 16",
    ),
    Need(
        ("ds.value_head_prefix",),
        lambda s: _has_critic(s) or s.reward.model_name_or_path is not None,
        "is for the head of a critic or a --reward.model_name_or_path, and there is neither",
    ),
    Need(
        ("train.max_tokens_per_gpu",),
        lambda s: s.train.dynamic_batch_enable,
        "has no effect without --train.dynamic_batch_enable; --train.micro_batch_size bounds a pass",
    ),
    Need(
        ("train.micro_batch_size",),
        lambda s: not s.train.dynamic_batch_enable,
        "has no effect under --train.dynamic_batch_enable, where --train.max_tokens_per_gpu bounds a pass; "
        "give --train.no_dynamic_batch_enable",
    ),
    Need(
        ("train.async_queue_size", "train.max_staleness", "train.partial_rollout_enable"),
        lambda s: s.train.async_enable,
        "is for rollouts that go on while the learner works: add --train.async_enable",
    ),
    Need(
        ("train.partial_rollout_cache",),
        lambda s: s.train.partial_rollout_enable,
        "has no effect without --train.partial_rollout_enable: completions then end before an update",
    ),
    Need(("train.ema_beta",), lambda s: s.train.enable_ema, "has no effect without --train.enable_ema"),
    Need(
        ("train.enable_ema", "critic.save_value_network"),
        lambda s: s.ckpt.save_hf,
        "writes a model beside the final one, and --ckpt.no_save_hf writes none; leave one of them out",
    ),
    Need(
        ("data.input_key", "data.label_key", "data.image_key", "data.input_template"),
        lambda s: s.data.prompt_dataset is not None or s.eval.dataset is not None,
        "is for the columns of --data.prompt_dataset, which is not given",
    ),
    Need(
        ("data.prompt_probs", "data.prompt_split"),
        lambda s: s.data.prompt_dataset is not None,
        "is for --data.prompt_dataset, which is not given",
    ),
    Need(
        ("data.apply_chat_template",),
        lambda s: has_prompt_env(s) or has_agent_file(s),
        "is for the environment Prompt and for func:FILE.py; --agent {s.agent} says itself what the model sees",
    ),
    Need(
        ("env_pool",),
        lambda s: not has_user_agent(s),
        "is for environments, and --agent {s.agent} is none; --agent_args.max_concurrency says how many run at once",
    ),
    Need(
        ("train.full_determinism_enable",),
        lambda s: not has_user_agent(s),
        "is for environments: in what order the requests of --agent {s.agent} come is not up to the run",
    ),
    Need(
        ("env_pool.num_threads",),
        lambda s: s.env_pool.backend == "thread",
        "has no effect under --env_pool.backend process, which has --env_pool.num_processes",
    ),
    Need(
        ("env_pool.num_processes", "env_pool.max_memory_gib"),
        lambda s: s.env_pool.backend == "process",
        "is for environments in processes: give --env_pool.backend process",
    ),
    Need(
        tuple(f"env_pool.{name}" for name in ("num_cpus", "resources", "start_timeout_s", "max_restarts")),
        lambda s: s.env_pool.num_workers > 0,
        "is for environments in Ray actors of their own: give --env_pool.num_workers",
    ),
    Need(
        ("eval",),
        _evaluates,
        "has no effect where nothing asks for evaluation; give --eval.at_start, --eval.at_end or --eval.steps",
    ),
    Need(("eval.split",), lambda s: s.eval.dataset is not None, "is for --eval.dataset, which is not given"),
)


def check_pairs(settings: TrainSettings) -> None:
    """Refuse what was asked for and would not happen; an option counts as given where it differs from its default.

    Raises:
        ConfigError: It names both options.
    """
    if settings.agent is None and settings.agent_args:
        raise ConfigError(f"--agent_args.{next(iter(settings.agent_args))} is for an environment: give --agent")
    for need in NEEDS:
        given = [name for option in need.options for name in changed_options(settings, option)]
        given = [name for name in given if name != "algo.kl.init_coef"]
        if given and not need.holds(settings):
            raise ConfigError(f"--{given[0]} {need.why.format(s=settings)}")
    check_pace(settings)
    check_branches(settings)
    check_determinism(settings)
    check_correction(settings)


def complaints(settings: TrainSettings) -> list[str]:
    """Return what can be meant and rarely is."""
    return [*kl_complaints(settings), *pace_complaints(settings), *branch_complaints(settings)]
