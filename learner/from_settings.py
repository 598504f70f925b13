"""From a run's options to what its parts are made with."""

from ..agents.base import Sampling
from ..errors import ConfigError
from ..executors.engines.vllm import VllmConfig
from ..executors.limits import Limits
from ..executors.rollout_actor import RolloutConfig
from ..registry import nearest, with_absolute_file
from .attention import PACKED
from .deepspeed_strategy import DeepSpeedConfig
from .inputs import Inputs
from .loop_parts import LoopSettings
from .losses import PolicyOptions
from .objective import Objective
from .placement import Layout
from .plan import plan_batches
from .rank import RankConfig
from .schedule import Schedule, num_warmup_steps
from .settings import TrainSettings

ENGINE_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHARED_GPU_MEMORY = 0.4  # of a GPU that engine and learner share
SCORING_SEQS = 32  # scored beside each other; each step of an engine takes SCORING_TOKENS of them in any case
SCORING_TOKENS = 2048  # each needs a row of float32 logits, which vLLM sets no memory aside for


def engine_dtype(settings: TrainSettings) -> str:
    """Return the torch dtype name that engines use, and that weights travel in."""
    name = settings.vllm.dtype or settings.ds.param_dtype
    if name not in ENGINE_DTYPES:
        raise ConfigError(f"--vllm.dtype: unknown {name!r}.{nearest(name, ENGINE_DTYPES)}")
    return ENGINE_DTYPES[name]


def rank_config(settings: TrainSettings, inputs: Inputs, layout: Layout) -> RankConfig:
    """Return what each learner rank is made with."""
    adam = settings.actor.adam
    actor = DeepSpeedConfig(
        model=inputs.model,
        param_dtype=settings.ds.param_dtype,
        attention=PACKED,
        betas=adam.betas,
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        max_norm=settings.actor.max_norm,
        gradient_checkpointing=settings.actor.gradient_checkpointing_enable,
    )
    reference = None
    if settings.algo.kl.init_coef:
        reference = DeepSpeedConfig(
            model=inputs.model,
            param_dtype=settings.ds.param_dtype,
            attention=PACKED,
            is_trained=False,
            offload_params=settings.ref.offload,
        )
    return RankConfig(
        actor=actor,
        reference=reference,
        seed=settings.train.seed,
        num_threads=layout.threads,
        timeout_s=settings.ds.timeout_s,
        is_deterministic=settings.train.full_determinism_enable,
    )


def rollout_config(settings: TrainSettings, inputs: Inputs, layout: Layout) -> RolloutConfig:
    """Return what each rollout actor is made with."""
    rollout, vllm, data = settings.rollout, settings.vllm, settings.data
    engine = VllmConfig(
        model=inputs.model,
        dtype=engine_dtype(settings),
        max_context=data.max_len,
        max_num_seqs=vllm.max_num_seqs,
        tensor_parallel_size=vllm.tensor_parallel_size,
        gpu_memory_utilization=vllm.gpu_memory_utilization or SHARED_GPU_MEMORY,
        enforce_eager=vllm.enforce_eager,
        enable_prefix_caching=vllm.enable_prefix_caching,
        kv_cache_gib=vllm.kv_cache_gib,
        seed=settings.train.seed,
        num_threads=layout.engine_threads,
        sync_timeout_s=vllm.sync_timeout_s,
    )
    limits = Limits(
        max_turns=rollout.max_turns,
        max_turn_tokens=rollout.max_new_tokens,
        max_episode_tokens=rollout.max_episode_tokens,
        max_context=data.max_len,
        max_seconds=rollout.max_seconds,
        env_timeout_s=max(settings.env_pool.timeout_s, settings.reward.timeout_s),
        generate_timeout_s=rollout.generate_timeout_s,
    )
    return RolloutConfig(
        engine=engine,
        env=inputs.env,
        limits=limits,
        num_env_threads=settings.env_pool.num_threads,
        max_retries=rollout.max_retries,
        determinism_seed=settings.train.seed if settings.train.full_determinism_enable else None,
    )


def teacher_config(settings: TrainSettings, layout: Layout) -> VllmConfig:
    """Return what each engine of the teacher is made with, checked against the actor's model before."""
    model = settings.teacher.model_name_or_path
    if model is None:
        raise ConfigError("--algo.advantage.estimator on_policy_distill wants --teacher.model_name_or_path")
    return VllmConfig(
        model=model,
        dtype=engine_dtype(settings),
        max_context=settings.data.max_len + 1,  # a scored sequence is a prompt, and something must follow a prompt
        max_num_seqs=SCORING_SEQS,
        gpu_memory_utilization=settings.teacher.gpu_memory_utilization,
        enforce_eager=True,  # graphs are for decoding
        enable_prefix_caching=False,  # what is cached has no logits
        kv_cache_gib=settings.vllm.kv_cache_gib,
        seed=settings.train.seed,
        num_threads=layout.engine_threads,
        sync_timeout_s=settings.vllm.sync_timeout_s,
        max_batched_tokens=SCORING_TOKENS,
        scoring_temperature=settings.rollout.temperature or 1.0,  # greedy logprobs count as temperature 1
    )


def objective(settings: TrainSettings) -> Objective:
    """Return the loss, checked."""
    actor, advantage, kl = settings.actor, settings.algo.advantage, settings.algo.kl
    low, high = actor.eps_clip_low_high or (actor.eps_clip, actor.eps_clip)
    bounds = advantage.is_correction_threshold
    if len(bounds) != 2:
        raise ConfigError(f"--algo.advantage.is_correction_threshold wants a lower and an upper bound, got {bounds}")
    return Objective(
        policy_loss=with_absolute_file(actor.policy_loss_type),
        policy=PolicyOptions(low, high, actor.dual_clip),
        aggregation=with_absolute_file(actor.loss_agg_mode or "token-mean"),
        correction_level=advantage.is_correction_level,
        correction_mode=advantage.is_correction_mode,
        correction_bounds=(bounds[0], bounds[1]),
        kl_coef=kl.init_coef if kl.use_loss else 0.0,
        kl_estimator=kl.estimator,
    )


def schedule(settings: TrainSettings, num_steps: int) -> Schedule:
    """Return the learning rate's course over the whole run, checked."""
    plan = plan_batches(settings.rollout, settings.train, settings.algo.advantage, 1)
    updates = num_steps * plan.optimizer_steps * settings.train.max_epochs
    warmup = num_warmup_steps(updates, settings.actor.lr_warmup_ratio)
    return Schedule(settings.actor.lr_scheduler, updates, warmup, settings.actor.min_lr_ratio)


def loop_settings(settings: TrainSettings, num_steps: int) -> LoopSettings:
    """Return the numbers of the loop."""
    rollout, held_out, kl = settings.rollout, settings.eval, settings.algo.kl
    max_tokens = rollout.max_new_tokens or settings.data.max_len
    return LoopSettings(
        batches=plan_batches(rollout, settings.train, settings.algo.advantage, 1),
        num_steps=num_steps,
        num_epochs=settings.train.max_epochs,
        sampling=Sampling(max_tokens, temperature=rollout.temperature, top_p=rollout.top_p, stop=rollout.stop),
        eval_sampling=Sampling(max_tokens, temperature=held_out.temperature, stop=rollout.stop),
        eval_attempts=held_out.n_samples_per_prompt,
        eval_every=held_out.steps,
        eval_at_start=held_out.at_start,
        eval_at_end=held_out.at_end,
        save_every=settings.ckpt.save_steps,
        estimator=settings.algo.advantage.estimator,
        no_std_norm=settings.algo.advantage.no_std_norm,
        reward_clip=settings.reward.clip_range,
        reward_kl_coef=0.0 if kl.use_loss else kl.init_coef,
        kl_estimator=kl.estimator,
        needs_reference=kl.init_coef != 0,
        peak_lr=settings.actor.adam.lr,
        max_failed_fraction=settings.train.max_failed_fraction,
        trajectories_per_step=settings.logger.trajectories_per_step,
    )
