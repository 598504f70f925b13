"""From a run's options to what its parts are made with."""

from collections.abc import Sequence

from ...agents.base import Sampling
from ...executors.engines.base import UpdateMode
from ...executors.episodes.branching import Branching
from ...executors.rollouts.dispatch import RolloutPlan
from ...executors.rollouts.pacing import Pace
from ...registry import with_absolute_file
from ..advantages import NEEDS_TEACHER
from ..loop_parts import LoopSettings
from ..losses.choice import aggregation_choice, correction_choice, policy_options
from ..losses.objective import Objective
from ..losses.value import ValueObjective
from ..models.attention import PACKED
from ..option_checks.agent import has_prompt_env
from ..options import ActorOptions, CriticOptions, TrainOptions
from ..ranks.deepspeed import DeepSpeedConfig
from ..ranks.optimizers import optimizer_config
from ..ranks.packing import MicroBatching
from ..ranks.rank import RankConfig
from ..ranks.roles import Role
from ..ranks.schedule import Schedule, num_warmup_steps
from ..rewards.shaping import shaping
from .batch_plan import plan_batches
from .inputs import Inputs, model_place
from .settings import TrainSettings


def rank_config(settings: TrainSettings, inputs: Inputs, roles: Sequence[Role], num_threads: int) -> RankConfig:
    """Return what each rank of a group that holds these roles is made with."""
    return RankConfig(
        # With adapters in the actor, its own base weights are the reference.
        models={
            role: _model_config(settings, inputs, role)
            for role in roles
            if role != "reference" or not settings.ds.lora.rank
        },
        seed=settings.train.seed,
        num_threads=num_threads,
        timeout_s=settings.ds.timeout_s,
        is_deterministic=settings.train.full_determinism_enable,
        ema_beta=settings.train.ema_beta if settings.train.enable_ema else None,
    )


def _model_config(settings: TrainSettings, inputs: Inputs, role: Role) -> DeepSpeedConfig:
    if role in ("reference", "reward"):
        is_reward = role == "reward"
        return DeepSpeedConfig(
            model=model_place(settings.reward.model_name_or_path or "") if is_reward else inputs.model,
            param_dtype=settings.ds.param_dtype,
            attention=PACKED,
            kind="value" if is_reward else "policy",
            head_prefix=settings.ds.value_head_prefix,
            is_trained=False,
            offload_params=settings.reward.offload if is_reward else settings.ref.offload,
        )
    options = settings.actor if role == "actor" else settings.critic
    return DeepSpeedConfig(
        model=inputs.model if role == "actor" else critic_model(settings, inputs),
        param_dtype=settings.ds.param_dtype,
        attention=PACKED,
        kind="policy" if role == "actor" else "value",
        head_prefix=settings.ds.value_head_prefix,
        new_head=True,
        optimizer=optimizer_config(options, offload=settings.ds.adam_offload),
        max_norm=options.max_norm,
        gradient_checkpointing=settings.actor.gradient_checkpointing_enable,
        lora=settings.ds.lora if role == "actor" and settings.ds.lora.rank else None,
        load_in_4bit=role == "actor" and settings.ds.load_in_4bit,
        freezes_eyes=role == "actor" and settings.actor.freeze_visual_encoder,
    )


def critic_model(settings: TrainSettings, inputs: Inputs) -> str:
    """Return what the critic begins as: its own model, else the reward model, else the actor."""
    return model_place(settings.critic.model_name_or_path or settings.reward.model_name_or_path or inputs.model)


def objective(settings: TrainSettings, *, is_stale: bool = False) -> Objective:
    """Return the loss, checked.

    Args:
        settings: All options.
        is_stale: Whether tokens of older weights will be trained on. Without a correction the loss then has the
            engine's logprobs as its ratio's denominator.
    """
    actor, kl = settings.actor, settings.algo.kl
    correction, aggregation = correction_choice(settings.algo.advantage), aggregation_choice(settings)
    return Objective(
        policy_loss=with_absolute_file(actor.policy_loss_type),
        policy=policy_options(actor),
        aggregation=aggregation.name,
        correction_level=correction.level,
        correction_mode=correction.mode,
        correction_bounds=correction.bounds,
        kl_coef=kl.init_coef if kl.use_loss else 0.0,
        kl_estimator=kl.estimator,
        correction_gating=correction.gating,
        aggregation_length=aggregation.length,
        has_unbiased_kl=kl.unbiased_gradient,
        entropy_coef=actor.entropy_coef,
        aux_loss_coef=actor.aux_loss_coef,
        uses_rollout_as_old=is_stale and correction.level == "off",
    )


def value_objective(settings: TrainSettings) -> ValueObjective:
    """Return the critic's loss, checked."""
    return ValueObjective(settings.critic.value_clip)


def schedule(settings: TrainSettings, num_steps: int, role: Role = "actor") -> Schedule:
    """Return the course of a role's learning rate over the whole run, checked."""
    plan = plan_batches(settings.rollout, settings.train, settings.algo.advantage, 1)
    options: ActorOptions | CriticOptions = settings.critic if role == "critic" else settings.actor
    frozen = max(0, settings.critic.freezing_steps) if role == "actor" else 0
    updates = max(0, num_steps - frozen) * plan.optimizer_steps * settings.train.max_epochs
    warmup = num_warmup_steps(updates, options.lr_warmup_ratio)
    return Schedule(options.lr_scheduler, updates, warmup, options.min_lr_ratio)


def has_env_reward(settings: TrainSettings) -> bool:
    """Whether the environment or --reward.remote_url gives a reward, beside or without a reward model.

    Who learns from a teacher needs none: the reward of 0 is then only shown.
    """
    if settings.algo.advantage.estimator in NEEDS_TEACHER:
        return True
    return settings.reward.remote_url is not None or not has_prompt_env(settings)


def micro_batching(train: TrainOptions, hidden_size: int) -> MicroBatching:
    """Return what bounds a forward pass; a transformer layer has about 12 x hidden_size^2 weights."""
    attention_length = 12 * hidden_size
    if train.dynamic_batch_enable:
        return MicroBatching(max_tokens=train.max_tokens_per_gpu, attention_length=attention_length)
    return MicroBatching(max_sequences=train.micro_batch_size, attention_length=attention_length)


def batches_ahead(settings: TrainSettings) -> int:
    """Return how many batches rollouts run ahead of the learner."""
    return settings.train.async_queue_size if settings.train.async_enable else 0


def update_mode(settings: TrainSettings) -> UpdateMode:
    """Return what becomes of running completions when weights are updated."""
    return (
        UpdateMode(settings.train.partial_rollout_cache) if settings.train.partial_rollout_enable else UpdateMode.DRAIN
    )


def pace(settings: TrainSettings) -> Pace:
    """Return how far rollouts run ahead of the learner, and how old a token may be that it learns from."""
    ahead, bound = batches_ahead(settings), settings.train.max_staleness
    if bound is None:
        bound = ahead + 1 if ahead else 0
    return Pace(
        batch_groups=settings.rollout.batch_size,
        batches_ahead=ahead,
        max_staleness=bound,
        generate_groups=settings.rollout.vllm_generate_batch_size,
    )


def rollout_plan(settings: TrainSettings) -> RolloutPlan:
    """Return how groups are rolled out."""
    rollout, env_s = settings.rollout, settings.env_pool.timeout_s
    loop = loop_settings(settings, 1)
    return RolloutPlan(
        numbers=tuple(range(rollout.n_samples_per_prompt)),
        sampling=loop.sampling,
        max_failed_attempts=rollout.max_failed_attempts,
        max_failed_fraction=settings.train.max_failed_fraction,
        # Each try may take its time, and its last step and its closing some more; then the answer is not coming.
        lease_s=(rollout.max_retries + 1) * (rollout.max_seconds + 4 * env_s) + settings.vllm.start_timeout_s,
        straggler_s=rollout.straggler_timeout_s,
        branching=Branching(rollout.branch_at, rollout.branch_factor) if rollout.branch_at else None,
    )


def loop_settings(settings: TrainSettings, num_steps: int) -> LoopSettings:
    """Return the numbers of the loop."""
    rollout, held_out = settings.rollout, settings.eval
    max_tokens = rollout.max_new_tokens or settings.data.max_len
    return LoopSettings(
        batches=plan_batches(rollout, settings.train, settings.algo.advantage, 1),
        num_steps=num_steps,
        num_epochs=settings.train.max_epochs,
        sampling=Sampling(max_tokens, temperature=rollout.temperature, top_p=rollout.top_p, stop=rollout.stop),
        eval_sampling=Sampling(max_tokens, temperature=held_out.temperature, stop=rollout.stop),
        eval_attempts=held_out.n_samples_per_prompt,
        eval_pass_at=held_out.pass_at,
        eval_every=held_out.steps,
        eval_at_start=held_out.at_start,
        eval_at_end=held_out.at_end,
        save_every=settings.ckpt.save_steps,
        algo=settings.algo,
        shaping=shaping(
            settings.reward,
            mask_truncated=settings.algo.advantage.mask_truncated,
            has_env_reward=has_env_reward(settings),
            max_turn_tokens=max_tokens,
            max_episode_tokens=rollout.max_episode_tokens or settings.data.max_len,
        ),
        peak_lr=settings.actor.adam.lr,
        critic_peak_lr=settings.critic.adam.lr,
        freezing_steps=settings.critic.freezing_steps,
        runs_ahead=settings.train.async_enable,
        max_failed_fraction=settings.train.max_failed_fraction,
        trajectories_per_step=settings.logger.trajectories_per_step,
        ends_with_tasks=settings.train.max_steps < 0,
    )
