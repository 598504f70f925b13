"""`turngym eval`: a model's score on held-out tasks, with what its episodes looked like; nothing is learned."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ...agents.chat import agent_for
from ...agents.tokenizer import load_tokenizer
from ...errors import ConfigError
from ...executors.fleet.fleet import Fleet
from ...executors.fleet.fleet_engine import EngineRef
from ...executors.fleet.ray_calls import call_all
from ...executors.rollouts.buffer import Group
from ..models.attention import check_context
from ..models.teacher_model import ACTOR_OPTION, model_config
from ..rollout_choice import make_rollouts
from ..steps.evaluation import EvalResult, evaluate
from ..steps.frontier import Frontier
from .engine_settings import engine_dtype, rollout_config
from .folder import RunFolder
from .from_settings import loop_settings
from .inputs import Inputs, check_eval_inputs
from .interrupt import EXIT_CODE, Interrupt, signals_raise
from .placement import Cluster, plan_layout
from .progress import Progress
from .records import keep_trajectories
from .report import print_episodes, shown_number
from .settings import TrainSettings

OWN_GPU_MEMORY = 0.9  # of a GPU that no learner shares


def evaluate_model(settings: TrainSettings, output: Path, config_text: str) -> int:
    """Score the model, and return the exit code: 0, 1 where every attempt failed, or 130 when interrupted.

    Args:
        settings: The configuration of a run; what concerns learning is not looked at.
        output: Folder for the episodes, `summary.json`, `scores.png` and the configuration.
        config_text: The configuration as YAML.

    Raises:
        ConfigError: Something asked for cannot be; nothing has been loaded then.
        TurnGymError: Engines died more often than they may be replaced.
    """
    settings = _only_engines(settings)
    inputs = check_eval_inputs(settings)
    choice = _checked_model(settings, inputs)
    folder = RunFolder(output, resumes=False, agent=settings.agent or "env:Prompt")
    progress = Progress(0)
    for line in (*inputs.complaints, choice):
        progress.say(line)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(progress)
        fleet = _engines(settings, inputs, folder, progress, stack)
        interrupt = stack.enter_context(Interrupt(progress.say, "stopping (once more to stop at once)"))
        source = Frontier(inputs.eval_tasks, 1, settings.train.seed, inputs.fingerprint)  # never drawn from
        rollouts = make_rollouts(settings, None, fleet, source, interrupt.is_set)
        stack.callback(rollouts.close)
        rollouts.start()
        loop = loop_settings(settings, 0)
        folder.write_config(config_text)
        num_kept = 0

        def keep(groups: Sequence[Group]) -> None:
            nonlocal num_kept
            num_kept += len(groups)
            keep_trajectories(folder.eval_store, 0, [t for g in groups for t in g.trajectories], progress.say)

        with progress.stage("eval"):
            result = evaluate(
                rollouts,
                inputs.eval_tasks,
                loop.eval_sampling,
                loop.eval_attempts,
                progress,
                interrupt.is_set,
                on_idle=lambda: _open(fleet, fleet.bare, settings),  # one that died has started anew
                members=tuple(inputs.env.members),
                pass_at=loop.eval_pass_at,
                keep=keep,
            )
    if result is None:
        progress.say(
            f"stopped after {num_kept} of {len(inputs.eval_tasks)} tasks, whose episodes are in {folder.root}: a score "
            "over some would be another score, so none is given"
        )
        return EXIT_CODE
    folder.write_summary(_summary(result, inputs.model, time.monotonic() - began))
    draw_scores(folder.root / "scores.png", result.groups)
    _print(Console(file=sys.stdout, highlight=False), result, folder.root)
    return 0 if result.reward is not None else 1


def _only_engines(settings: Any) -> Any:  # Any: what composes the options is only known by its groups here
    """Return the settings with evaluation asked for, whole weights, and the GPU to the engine alone."""
    share = settings.vllm.gpu_memory_utilization or OWN_GPU_MEMORY
    return replace(
        settings,
        eval=replace(settings.eval, at_start=True),
        vllm=replace(settings.vllm, gpu_memory_utilization=share),
        ds=replace(settings.ds, lora=replace(settings.ds.lora, rank=0)),
        train=replace(settings.train, replay_schedule=None),
    )


def _checked_model(settings: TrainSettings, inputs: Inputs) -> str:
    """Refuse a model that cannot play, before anything is loaded; return how its tool calls will be read."""
    if settings.reward.model_name_or_path is not None:
        raise ConfigError(
            "--reward.model_name_or_path: reward models live beside the learner, which an evaluation has none of; "
            "serve it with turngym serve-rm and give --reward.remote_url"
        )
    check_context(model_config(inputs.model, ACTOR_OPTION), settings.data.max_len)
    engine_dtype(settings)
    rollout = settings.rollout
    agent = agent_for(
        load_tokenizer(inputs.model), tool_parser=rollout.tool_parser, reasoning_parser=rollout.reasoning_parser
    )
    return agent.readers.choice


def _engines(settings: TrainSettings, inputs: Inputs, folder: RunFolder, progress: Progress, stack: ExitStack) -> Fleet:
    """Start the engines, which end with the stack."""
    with progress.stage("starting Ray"):
        cluster = Cluster(folder.logs)
    stack.callback(cluster.close)
    stack.enter_context(signals_raise())  # after Ray, which handles SIGTERM its own way
    layout = plan_layout(
        cluster.hardware(),
        num_gpus_per_node=None,
        num_nodes=1,
        num_engines=settings.vllm.num_engines,
        gpus_per_engine=settings.vllm.tensor_parallel_size,
    )
    fleet = cluster.fleet(
        rollout_config(settings, inputs, layout),
        layout,
        start_timeout_s=settings.vllm.start_timeout_s,
        max_restarts=settings.vllm.max_restarts,
        say=progress.say,
    )
    stack.callback(fleet.close)
    with progress.stage("starting the engines"):
        call_all(fleet.begin_start(), settings.vllm.start_timeout_s, "starting the engines")
    _open(fleet, fleet.started, settings)
    return fleet


def _open(fleet: Fleet, engines: Sequence[EngineRef], settings: TrainSettings) -> None:
    """Let engines answer under the weights that they were started with."""
    if engines:
        timeout_s = settings.vllm.sync_timeout_s
        fleet.equip(fleet.call(engines, "use_own_weights", timeout_s=timeout_s, what="opening the engines"))


def _summary(result: EvalResult, model: str, seconds: float) -> dict[str, Any]:  # Any: JSON
    return {
        "model": model,
        "reward": result.reward,
        "pass_at": {str(k): share for k, share in sorted(result.pass_at.items())},
        **({"reward_by_member": dict(result.by_member)} if result.by_member else {}),
        "tasks": result.num_tasks,
        "attempts": result.num_attempts,
        "failed_attempts": result.num_failed,
        "seconds": round(seconds, 3),
    }


def _print(console: Console, result: EvalResult, folder: Path) -> None:
    table = Table(title="Held-out tasks")
    table.add_column("")
    table.add_column("score", justify="right")
    table.add_row("mean reward", shown_number(result.reward))
    for k, share in sorted(result.pass_at.items()):
        table.add_row(f"pass@{k}", shown_number(share))
    for member, reward in result.by_member.items():
        table.add_row(f"mean reward of {member}", shown_number(reward))
    console.print(table)
    failed = f", of which {result.num_failed} failed and do not count" if result.num_failed else ""
    console.print(f"{result.num_tasks} tasks, {result.num_attempts} attempts{failed}", markup=False)
    print_episodes(console, result.groups)
    console.print(f"Everything is in {folder}", markup=False)


def draw_scores(path: Path, groups: Sequence[Group]) -> None:
    """Draw each task's mean reward, the worst first, with the least and the best of its attempts."""
    from matplotlib.figure import Figure

    rewards = [[t.reward for t in group.trajectories if t.is_valid] for group in groups]
    known = sorted((np.array(task) for task in rewards if task), key=np.mean)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(known))
    if known:
        axes.fill_between(
            places,
            [task.min() for task in known],
            [task.max() for task in known],
            step="mid",
            alpha=0.25,
            label="least to best attempt",
        )
        axes.step(places, [task.mean() for task in known], where="mid", label="mean of the attempts")
        axes.legend()
    axes.set_xlabel("held-out tasks, the worst first")
    axes.set_ylabel("reward")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
