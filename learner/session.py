"""One run from its processes to its report: start, resume, loop, save, report, and leave nothing behind."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import ConfigError, EngineError, TrajectoryError
from ..executors.buffer_file import FINISHED, read_finished
from ..executors.rollouts import Rollouts
from .checkpoint import Checkpoint, CheckpointFolder
from .from_settings import (
    critic_model,
    engine_dtype,
    loop_settings,
    pace,
    rollout_config,
    rollout_plan,
    update_mode,
)
from .frontier import Frontier, FrontierState
from .inputs import Inputs
from .interrupt import EXIT_CODE, Interrupt, signals_raise
from .kl_controller import resumed_coef
from .launch import check_one_gpu, load_all, make_roles, make_teacher
from .loop import run_loop, save
from .loop_parts import LoopState, Parts
from .memory import MemoryMeter
from .placement import Cluster, plan_layout
from .progress import Progress
from .report import Scores, draw_rewards, print_report, summarise
from .roles import Roles
from .run_folder import RunFolder
from .run_plan import Plan, make_plan, written_by
from .settings import TrainSettings
from .weight_sync import WeightSync


@dataclass
class Standing:
    """Where the run stands, from its earlier parts on; the loop adds to it."""

    state: LoopState
    scores: Scores
    rows: list[dict[str, Any]]


def run_session(settings: TrainSettings, inputs: Inputs, config_text: str) -> int:
    """Train, and return the exit code: 0, or 130 when interrupted."""
    plan = make_plan(settings, inputs)
    checkpoints, checkpoint, cut_off = _checkpoints(settings)
    agent = settings.agent or "env:Prompt"
    folder = RunFolder(Path(settings.ckpt.output_dir), resumes=settings.ckpt.load_enable, agent=agent)
    progress = Progress(plan.num_steps)
    for complaint in inputs.complaints:
        progress.say(complaint)
    if folder.moved_to is not None:
        progress.say(f"the earlier run was moved to {folder.moved_to}")
    for name in cut_off:
        progress.say(f"checkpoint {name} was cut off half-way and is not used")
    with ExitStack() as stack:
        stack.enter_context(progress)
        memory = MemoryMeter()
        stack.callback(memory.close)
        with progress.stage("starting Ray"):
            cluster = Cluster(folder.logs)
        stack.callback(cluster.close)
        stack.enter_context(signals_raise())  # after Ray, which handles SIGTERM its own way
        interrupt = Interrupt(progress.say)
        parts, done = _start(plan, folder, checkpoints, checkpoint, cluster, progress, interrupt, stack)
        folder.write_config(config_text)  # only now, since a run that cannot go on leaves an earlier one as it was
        stack.enter_context(interrupt)
        interrupt.on_set(parts.roles.request_stop)
        if parts.teacher is not None:
            interrupt.on_set(parts.teacher.request_stop)
        try:
            groups = run_loop(parts, loop_settings(settings, plan.num_steps), done.state, done.scores, done.rows)
        except (TrajectoryError, EngineError):
            # The learner is well and stands after a whole step: what it learned must not go down with the engines.
            if done.state.step:
                save(parts, done.state, done.scores)
            raise
        if done.state.is_interrupted:
            # The engines have nothing to save, and end while the learner does.
            parts.fleet.kill()
            if parts.teacher is not None:
                parts.teacher.kill()
        summary = _finish(plan, parts, done, memory)
        if not done.state.is_interrupted:
            draw_rewards(folder.root / "reward.png", done.rows, done.scores)
    if done.state.is_interrupted:
        progress.say(f"stopped after step {done.state.step}; --ckpt.load_enable goes on from there")
        return EXIT_CODE
    print_report(Console(file=sys.stdout, highlight=False), summary, groups, folder.root)
    return 0


def _checkpoints(settings: TrainSettings) -> tuple[CheckpointFolder, Checkpoint | None, list[str]]:
    """Return the folder of checkpoints, the one to go on from, and the names of newer ones that were cut off."""
    ckpt = settings.ckpt
    checkpoints = CheckpointFolder(Path(ckpt.path or f"{ckpt.output_dir}/checkpoints"), ckpt.max_num)
    if not ckpt.load_enable and ckpt.path is None:
        return checkpoints, None, []  # what is there is an earlier run's, and moved aside with it
    newest, cut_off = checkpoints.newest()
    if newest is not None and not ckpt.load_enable:
        raise ConfigError(
            f"--ckpt.path {ckpt.path!r} holds {newest.path.name} of an earlier run; "
            "go on with it by --ckpt.load_enable, or name another folder"
        )
    return checkpoints, newest, cut_off


def _start(
    plan: Plan,
    folder: RunFolder,
    checkpoints: CheckpointFolder,
    checkpoint: Checkpoint | None,
    cluster: Cluster,
    progress: Progress,
    interrupt: Interrupt,
    stack: ExitStack,
) -> tuple[Parts, Standing]:
    settings, inputs = plan.settings, plan.inputs
    layout = plan_layout(
        cluster.hardware(),
        num_gpus_per_node=settings.actor.num_gpus_per_node,
        num_nodes=settings.actor.num_nodes,
        num_engines=settings.vllm.num_engines,
        gpus_per_engine=settings.vllm.tensor_parallel_size,
    )
    if layout.is_on_gpu:
        check_one_gpu(settings, plan.role_groups)
    elif settings.ds.adam_offload:
        progress.say("--ds.adam_offload changes nothing without a GPU: the optimiser is in host memory anyway")
    writer = written_by(plan, layout.num_ranks)
    if checkpoint is not None:
        checkpoint.check_written_by(writer)
    started_at = time.monotonic()
    roles = make_roles(plan, layout, cluster)
    stack.callback(roles.close)
    fleet = cluster.fleet(
        rollout_config(settings, inputs, layout),
        layout,
        start_timeout_s=settings.vllm.start_timeout_s,
        max_restarts=settings.vllm.max_restarts,
        say=progress.say,
    )
    stack.callback(fleet.close)
    teacher = make_teacher(plan, layout, cluster, progress, stack)
    with progress.stage("starting engines and learner"):
        num_parameters = load_all(fleet, teacher, roles, layout, settings)
    frontier = Frontier(inputs.tasks, settings.train.num_episodes, settings.train.seed, inputs.fingerprint)
    rollouts = Rollouts(fleet, frontier, pace(settings), rollout_plan(settings))
    stack.callback(rollouts.close)
    done = _resume(settings, roles, checkpoints, checkpoint, frontier, rollouts, folder, progress)
    version = 0 if checkpoint is None else int(checkpoint.state["version"])
    sync = WeightSync(
        roles["actor"],
        fleet,
        engine_dtype(settings),
        settings.vllm.sync_timeout_s,
        pause_timeout_s=max(settings.vllm.sync_timeout_s, settings.rollout.generate_timeout_s),
        mode=update_mode(settings),
        version=version,
    )
    with progress.stage("checking the weight update"):
        report = sync.check_canary(plan.canary_prompt, settings.data.max_len)
    progress.say(
        f"{num_parameters / 1e6:.1f}M parameters on {layout.num_ranks} learner ranks, {layout.num_engines} engines; "
        f"ready after {time.monotonic() - started_at:.0f} s; engine and learner differ by {report.true:.2g} per logprob"
    )
    rollouts.start()
    parts = Parts(
        eval_tasks=inputs.eval_tasks,
        frontier=frontier,
        fleet=fleet,
        rollouts=rollouts,
        roles=roles,
        sync=sync,
        objective=plan.objective,
        schedule=plan.schedule,
        value_objective=plan.value_objective,
        critic_schedule=plan.critic_schedule,
        reward_reader=plan.reward_reader,
        teacher=teacher,
        checkpoints=checkpoints,
        written_by=writer,
        folder=folder,
        progress=progress,
        interrupt=interrupt,
    )
    return parts, done


def _resume(
    settings: TrainSettings,
    roles: Roles,
    checkpoints: CheckpointFolder,
    checkpoint: Checkpoint | None,
    frontier: Frontier,
    rollouts: Rollouts,
    folder: RunFolder,
    progress: Progress,
) -> Standing:
    """Go on from the newest checkpoint if the user wants that and there is one."""
    if not settings.ckpt.load_enable:
        return Standing(LoopState(frontier.state(), kl_coef=settings.algo.kl.init_coef), Scores({}), [])
    if checkpoint is None:
        progress.say(f"there is no checkpoint in {checkpoints.root}: the run begins at the first step")
        folder.forget_steps_after(-1)
        return Standing(LoopState(frontier.state(), kl_coef=settings.algo.kl.init_coef), Scores({}), [])
    roles.load(str(checkpoints.root), checkpoint.path.name)
    complaint = frontier.restore(FrontierState(**checkpoint.state["frontier"]))
    progress.say(complaint or f"going on after step {checkpoint.step}")
    if complaint is None:
        finished = read_finished(checkpoint.path / FINISHED, frontier.named)
        rollouts.restore(finished, checkpoint.state["rollout_counts"])
    scores = Scores({int(step): reward for step, reward in checkpoint.state["scores"].items()})
    rollout_state, frontier_state = rollouts.state(frontier.state)
    state = LoopState(
        frontier_state,
        rollout_state,
        checkpoint.step,
        checkpoint.state["optimizer_steps"],
        checkpoint.state["critic_steps"],
        saved_step=checkpoint.step,
        part=checkpoint.state["part"] + 1,
        kl_coef=resumed_coef(settings.algo.kl, checkpoint.state["kl_coef"]),
    )
    return Standing(state, scores, folder.forget_steps_after(checkpoint.step))


def _finish(plan: Plan, parts: Parts, done: Standing, memory: MemoryMeter) -> dict[str, Any]:
    settings, state = plan.settings, done.state
    if state.is_interrupted or settings.ckpt.save_steps > 0:
        with parts.progress.stage("saving a checkpoint"):
            save(parts, state, done.scores)
    if settings.ckpt.save_hf and not state.is_interrupted:
        with parts.progress.stage("saving the model"):
            _save_models(plan, parts)
    extra = {
        "is_complete": not state.is_interrupted,
        "version": parts.sync.version,
        "engine_restarts": parts.fleet.num_restarts,
        "model": str(parts.folder.model) if settings.ckpt.save_hf else None,
    }
    summary = summarise(done.rows, done.scores, memory.peak_bytes, extra)
    parts.folder.write_summary(summary)
    return summary


def _save_models(plan: Plan, parts: Parts) -> None:
    settings, root, source = plan.settings, parts.folder.root, plan.inputs.model
    parts.roles["actor"].save_hf(str(parts.folder.model), source)
    if settings.train.enable_ema:
        parts.roles["actor"].save_hf(str(root / "model_ema"), source, averaged=True)
    if settings.critic.save_value_network and "critic" in parts.roles:
        parts.roles["critic"].save_hf(str(root / "critic"), critic_model(settings, plan.inputs), "critic")
