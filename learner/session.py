"""One run from its processes to its report: start, resume, loop, save, report, and leave nothing behind."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ..agents.base import Sampling
from ..errors import ConfigError
from ..executors.engines.vllm import VllmConfig
from ..executors.fleet import Fleet, call_all
from ..executors.limits import Limits
from ..executors.rollout_actor import RolloutConfig
from ..registry import with_absolute_file
from .attention import PACKED, check_packable
from .checkpoint import Checkpoint, CheckpointFolder
from .deepspeed_strategy import DeepSpeedConfig
from .frontier import Frontier
from .interrupt import EXIT_CODE, Interrupt
from .loop import LoopSettings, LoopState, Parts, run_loop, save
from .losses import PolicyOptions
from .memory import MemoryMeter
from .objective import Objective
from .placement import Cluster, Layout, plan_layout
from .plan import plan_batches
from .progress import Progress
from .rank import RankConfig
from .ranks import Ranks
from .report import Scores, draw_rewards, print_report, summarise
from .run import ENGINE_DTYPES, Inputs, count_steps
from .run_folder import RunFolder
from .schedule import Schedule, num_warmup_steps
from .settings import TrainSettings
from .weight_sync import WeightSync

SHARED_GPU_MEMORY = 0.4  # of a GPU that engine and learner share
CANARY_TEXT = "The quick brown fox jumps over the lazy dog. 12 + 30 ="


def run_session(settings: TrainSettings, inputs: Inputs, config_text: str) -> int:
    """Train, and return the exit code: 0, or 130 when interrupted."""
    folder = RunFolder(Path(settings.ckpt.output_dir), resumes=settings.ckpt.load_enable)
    folder.write_config(config_text)
    check_packable(_model_config(inputs.model), settings.data.max_len)
    num_steps = count_steps(settings, len(inputs.tasks))
    progress = Progress(num_steps)
    for complaint in inputs.complaints:
        progress.say(complaint)
    if folder.moved_to is not None:
        progress.say(f"the earlier run was moved to {folder.moved_to} (--ckpt.load_enable goes on with it)")
    with ExitStack() as stack:
        stack.enter_context(progress)
        memory = MemoryMeter()
        stack.callback(memory.close)
        with progress.stage("starting Ray"):
            cluster = Cluster(folder.logs)
        stack.callback(cluster.close)
        interrupt = stack.enter_context(Interrupt(progress.say))  # after Ray, which handles SIGTERM its own way
        parts, state, scores, rows = _start(settings, inputs, folder, cluster, progress, interrupt, stack)
        groups = run_loop(parts, _loop_settings(settings, num_steps), state, scores, rows)
        if state.is_interrupted:
            # The engines have nothing to save, and end while the learner does.
            parts.fleet.kill()
        summary = _finish(settings, inputs, parts, state, scores, rows, memory)
        draw_rewards(folder.root / "reward.png", rows, scores)
    if state.is_interrupted:
        progress.say(f"stopped after step {state.step}; --ckpt.load_enable goes on from there")
        return EXIT_CODE
    print_report(Console(file=sys.stdout, highlight=False), summary, groups, folder.root)
    return 0


def _start(
    settings: TrainSettings,
    inputs: Inputs,
    folder: RunFolder,
    cluster: Cluster,
    progress: Progress,
    interrupt: Interrupt,
    stack: ExitStack,
) -> tuple[Parts, LoopState, Scores, list[dict[str, Any]]]:
    layout = plan_layout(
        cluster.hardware(),
        num_gpus_per_node=settings.actor.num_gpus_per_node,
        num_nodes=settings.actor.num_nodes,
        num_engines=settings.vllm.num_engines,
        gpus_per_engine=settings.vllm.tensor_parallel_size,
        colocate=settings.train.colocate_all,
    )
    started_at = time.monotonic()
    ranks = cluster.ranks(
        _rank_config(settings, inputs, layout),
        layout,
        micro_batch_tokens=settings.train.micro_batch_tokens,
        timeout_s=settings.ds.timeout_s,
    )
    stack.callback(ranks.close)
    fleet = cluster.fleet(
        _rollout_config(settings, inputs, layout),
        layout,
        start_timeout_s=settings.vllm.start_timeout_s,
        max_restarts=settings.vllm.max_restarts,
        say=progress.say,
    )
    stack.callback(fleet.close)
    with progress.stage("starting engines and learner"):
        num_parameters = _load_all(fleet, ranks, layout, settings)
    checkpoints = CheckpointFolder(
        Path(settings.ckpt.path) if settings.ckpt.path else folder.root / "checkpoints", settings.ckpt.max_num
    )
    frontier = Frontier(len(inputs.tasks), settings.train.num_episodes, settings.train.seed, inputs.fingerprint)
    state, scores, rows = _resume(settings, ranks, checkpoints, frontier, folder, progress)
    sync = WeightSync(ranks, fleet, ENGINE_DTYPES[settings.ds.param_dtype], settings.vllm.sync_timeout_s)
    with progress.stage("checking the weight update"):
        report = sync.check_canary(_canary_prompt(inputs.model))
    progress.say(
        f"{num_parameters / 1e6:.1f}M parameters on {layout.num_ranks} learner ranks, {layout.num_engines} engines; "
        f"ready after {time.monotonic() - started_at:.0f} s; engine and learner differ by {report.true:.2g} per logprob"
    )
    interrupt.on_set(ranks.request_stop)
    parts = Parts(
        tasks=inputs.tasks,
        eval_tasks=inputs.eval_tasks,
        frontier=frontier,
        fleet=fleet,
        ranks=ranks,
        sync=sync,
        objective=_objective(settings),
        schedule=_schedule(settings, count_steps(settings, len(inputs.tasks))),
        checkpoints=checkpoints,
        folder=folder,
        progress=progress,
        interrupt=interrupt,
    )
    return parts, state, scores, rows


def _load_all(fleet: Fleet, ranks: Ranks, layout: Layout, settings: TrainSettings) -> int:
    """Start engines and learner, beside each other where they share no GPU; return the number of parameters."""
    timeout_s = settings.vllm.start_timeout_s
    starting = fleet.begin_start()
    if layout.is_on_gpu:  # an engine measures the GPU's free memory, so nothing else may take any meanwhile
        call_all(starting, timeout_s, "starting the engines")
    loading = ranks.begin_setup()
    call_all([*starting, *loading], timeout_s, "starting engines and learner")
    return int(call_all(loading, timeout_s, "loading the learner")[0])


def _resume(
    settings: TrainSettings,
    ranks: Ranks,
    checkpoints: CheckpointFolder,
    frontier: Frontier,
    folder: RunFolder,
    progress: Progress,
) -> tuple[LoopState, Scores, list[dict[str, Any]]]:
    """Go on from the newest checkpoint if the user wants that and there is one."""
    if not settings.ckpt.load_enable:
        return LoopState(), Scores({}), []
    checkpoint, cut_off = checkpoints.newest()
    for name in cut_off:
        progress.say(f"checkpoint {name} was cut off half-way and is not used")
    if checkpoint is None:
        progress.say(f"there is no checkpoint in {checkpoints.root}: the run begins at the first step")
        return LoopState(), Scores({}), folder.read_metrics(up_to_step=0)
    _load(checkpoint, ranks, checkpoints)
    complaint = frontier.restore(checkpoint.state["frontier"])
    progress.say(complaint or f"going on after step {checkpoint.step}")
    scores = Scores({int(step): reward for step, reward in checkpoint.state["scores"].items()})
    state = LoopState(step=checkpoint.step, optimizer_steps=checkpoint.state["optimizer_steps"])
    return state, scores, folder.read_metrics(up_to_step=checkpoint.step)


def _load(checkpoint: Checkpoint, ranks: Ranks, checkpoints: CheckpointFolder) -> None:
    ranks.load(str(checkpoints.root), checkpoint.path.name)


def _finish(
    settings: TrainSettings,
    inputs: Inputs,
    parts: Parts,
    state: LoopState,
    scores: Scores,
    rows: list[dict[str, Any]],
    memory: MemoryMeter,
) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    saves = settings.ckpt.save_steps > 0
    if state.is_interrupted or (saves and state.step % settings.ckpt.save_steps):
        with parts.progress.stage("saving a checkpoint", seconds):
            save(parts, state, scores)
    if settings.ckpt.save_hf and not state.is_interrupted:
        with parts.progress.stage("saving the model", seconds):
            parts.ranks.save_hf(str(parts.folder.model), inputs.model)
    extra = {
        "is_complete": not state.is_interrupted,
        "version": parts.sync.version,
        "engine_restarts": parts.fleet.num_restarts,
        "model": str(parts.folder.model) if settings.ckpt.save_hf else None,
    }
    summary = summarise(rows, scores, memory.peak_bytes, extra)
    parts.folder.write_summary(summary)
    return summary


def _rank_config(settings: TrainSettings, inputs: Inputs, layout: Layout) -> RankConfig:
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


def _rollout_config(settings: TrainSettings, inputs: Inputs, layout: Layout) -> RolloutConfig:
    rollout, vllm, data = settings.rollout, settings.vllm, settings.data
    engine = VllmConfig(
        model=inputs.model,
        dtype=ENGINE_DTYPES[settings.ds.param_dtype] if vllm.dtype is None else ENGINE_DTYPES[vllm.dtype],
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


def _objective(settings: TrainSettings) -> Objective:
    actor, advantage, kl = settings.actor, settings.algo.advantage, settings.algo.kl
    low, high = actor.eps_clip_low_high or (actor.eps_clip, actor.eps_clip)
    bounds = advantage.is_correction_threshold
    if len(bounds) != 2:
        raise ConfigError(f"--algo.advantage.is_correction_threshold wants a lower and an upper bound, got {bounds}")
    return Objective(
        policy_loss=with_absolute_file(actor.policy_loss_type),
        policy=PolicyOptions(low, high, actor.dual_clip),
        aggregation=with_absolute_file(actor.loss_agg_mode),
        correction_level=advantage.is_correction_level,
        correction_mode=advantage.is_correction_mode,
        correction_bounds=(bounds[0], bounds[1]),
        kl_coef=kl.init_coef if kl.use_loss else 0.0,
        kl_estimator=kl.estimator,
    )


def _schedule(settings: TrainSettings, num_steps: int) -> Schedule:
    plan = plan_batches(settings.rollout, settings.train, settings.algo.advantage, 1)
    updates = num_steps * plan.optimizer_steps * settings.train.max_epochs
    warmup = num_warmup_steps(updates, settings.actor.lr_warmup_ratio)
    return Schedule(settings.actor.lr_scheduler, updates, warmup, settings.actor.min_lr_ratio)


def _loop_settings(settings: TrainSettings, num_steps: int) -> LoopSettings:
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


def _model_config(model: str) -> Any:  # Any: transformers' configurations are open
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--actor.model_name_or_path: {model!r} holds no model that transformers knows: {error}"
        ) from error


def _canary_prompt(model: str) -> list[int]:
    from ..agents.tokenizer import load_tokenizer

    ids: list[int] = load_tokenizer(model).encode(CANARY_TEXT, add_special_tokens=False)
    return ids
