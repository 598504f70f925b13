"""One run from its processes to its report: start, resume, loop, save, report, and leave nothing behind."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from ...agents.frameworks.factory import AgentFactory
from ...envs.factory import EnvFactory
from ...envs.tools.tool_loop import ToolLoop
from ...errors import CheckpointError, ConfigError
from ...executors.pools.known_states import KnownStates
from ..env_pools import EnvPools
from ..loop_parts import Parts
from ..rollout_choice import make_rollouts
from ..steps.frontier import Frontier
from ..weight_sync import WeightSync
from .checkpoint import Checkpoint, CheckpointFolder
from .engine_settings import engine_dtype, pause_timeout_s, rollout_config
from .folder import RunFolder
from .from_settings import critic_model, loop_settings, update_mode
from .inputs import Inputs
from .interrupt import EXIT_CODE, Interrupt, signals_raise
from .launch import check_one_gpu, load_all, make_roles, make_teacher
from .memory import MemoryMeter
from .placement import Cluster, plan_layout
from .plan import Plan, make_plan, written_by
from .progress import Progress
from .report import draw_rewards, print_report, summarise
from .saving import save
from .settings import TrainSettings
from .standing import Standing, begun, go_on, resumed


def run_session(settings: TrainSettings, inputs: Inputs, config_text: str) -> int:
    """Train, and return the exit code: 0, or 130 when interrupted."""
    plan = make_plan(settings, inputs)
    checkpoints, checkpoint, passed_over = _checkpoints(settings)
    agent = settings.agent or "env:Prompt"
    # Without a checkpoint to go on from, an earlier run is moved aside as ever.
    folder = RunFolder(Path(settings.ckpt.output_dir), resumes=checkpoint is not None, agent=agent)
    progress = Progress(plan.num_steps)
    for complaint in inputs.complaints:
        progress.say(complaint)
    if folder.moved_to is not None:
        progress.say(f"the earlier run was moved to {folder.moved_to}")
    for line in passed_over:
        progress.say(line)
    if isinstance(inputs.env, AgentFactory) or issubclass(inputs.env.env_class, ToolLoop):
        progress.say(plan.tool_parser_choice)
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
        groups = go_on(parts, loop_settings(settings, plan.num_steps), done)
        if done.state.is_interrupted:
            # The engines end while the learner saves.
            parts.rollouts.close()  # else it would have them started anew
            if parts.pools is not None:
                parts.pools.gather_last()
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
    """Return the folder of checkpoints, the one to go on from, and lines about newer ones that cannot be used."""
    ckpt = settings.ckpt
    checkpoints = CheckpointFolder(Path(ckpt.path or f"{ckpt.output_dir}/checkpoints"), ckpt.max_num)
    if not ckpt.load_enable and ckpt.path is None:
        return checkpoints, None, []  # what is there is an earlier run's, and moved aside with it
    newest, passed_over = checkpoints.newest()
    if newest is not None and not ckpt.load_enable:
        raise ConfigError(
            f"--ckpt.path {ckpt.path!r} holds {newest.path.name} of an earlier run; "
            "go on with it by --ckpt.load_enable, or name another folder"
        )
    return checkpoints, newest, passed_over


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
    env_states = KnownStates(progress.say)
    fleet = cluster.fleet(
        rollout_config(settings, inputs, layout),
        layout,
        start_timeout_s=settings.vllm.start_timeout_s,
        max_restarts=settings.vllm.max_restarts,
        say=progress.say,
        env_states=env_states,
    )
    stack.callback(fleet.close)
    teacher = make_teacher(plan, layout, cluster, progress, stack)
    with progress.stage("starting engines and learner"):
        num_parameters = load_all(fleet, teacher, roles, layout, settings)
    frontier = Frontier(inputs.tasks, settings.train.num_episodes, settings.train.seed, inputs.fingerprint)
    rollouts = make_rollouts(settings, plan.rollout_schedule, fleet, frontier, interrupt.is_set)
    stack.callback(rollouts.close)
    pools = EnvPools(
        fleet,
        env_states,
        settings.env_pool.timeout_s,
        progress.say,
        keeps_state=isinstance(inputs.env, EnvFactory) and inputs.env.keeps_state,
    )
    if settings.ckpt.load_enable:
        done = resumed(checkpoint, roles, frontier, rollouts, folder, settings.algo.kl, progress.say)
        if checkpoint is not None:
            pools.load(checkpoint.path)
    else:
        done = begun(frontier, settings.algo.kl)
    version = 0 if checkpoint is None else int(checkpoint.state["version"])
    sync = WeightSync(
        roles["actor"],
        fleet,
        engine_dtype(settings),
        settings.vllm.sync_timeout_s,
        pause_timeout_s=pause_timeout_s(settings),
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
        pools=pools,
        members=tuple(inputs.env.members),
    )
    return parts, done


def _finish(plan: Plan, parts: Parts, done: Standing, memory: MemoryMeter) -> dict[str, Any]:
    settings, state = plan.settings, done.state
    unsaved: CheckpointError | None = None
    if state.is_interrupted or settings.ckpt.save_steps > 0:
        with parts.progress.stage("saving a checkpoint"):
            try:
                save(parts, state, done.scores)
            except CheckpointError as error:  # the model and the summary may still find room
                parts.progress.say(f"WARNING: {error}")
                unsaved = error
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
    if unsaved is not None:
        raise unsaved
    return summary


def _save_models(plan: Plan, parts: Parts) -> None:
    settings, root, source = plan.settings, parts.folder.root, plan.inputs.model
    parts.roles["actor"].save_hf(str(parts.folder.model), source)
    if settings.train.enable_ema:
        parts.roles["actor"].save_hf(str(root / "model_ema"), source, averaged=True)
    if settings.critic.save_value_network and "critic" in parts.roles:
        parts.roles["critic"].save_hf(str(root / "critic"), critic_model(settings, plan.inputs), "critic")
