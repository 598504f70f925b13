"""What a run leaves for people: a summary, a picture of the reward, a table and two episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...executors.episodes.trajectory import Trajectory
from ...executors.rollouts.buffer import Group

STAGES = ("rollout", "score", "train", "sync", "eval", "save")


@dataclass(frozen=True)
class Scores:
    """Held-out reward before, during and after training, by step; of a mixture also that of each member."""

    by_step: dict[int, float]
    by_member: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def before(self) -> float | None:
        """Before the first step."""
        return self.by_step.get(0)

    def after(self, last_step: int) -> float | None:
        """After the last step."""
        return self.by_step.get(last_step) if last_step else None


def summarise(
    rows: Sequence[Mapping[str, Any]], scores: Scores, peak_bytes: int, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the numbers of a run, from its metrics by step."""
    steps = rows[-1]["step"] if rows else 0
    tokens = sum(row["rollout/tokens"] for row in rows)
    seconds = {name: sum(row["seconds"].get(name, 0.0) for row in rows) for name in STAGES}
    return {
        "steps": steps,
        "before": scores.before,
        "after": scores.after(steps),
        "eval_rewards": _by_step(scores.by_step),
        **({"eval_rewards_by_member": _by_step(scores.by_member)} if scores.by_member else {}),
        "rewards": [row.get("reward/mean") for row in rows],
        "tokens": tokens,
        "tokens_per_s": tokens / seconds["rollout"] if seconds["rollout"] else None,
        "seconds_per_stage": {name: round(value, 3) for name, value in seconds.items()},
        "mismatch": _mean([row.get("mismatch/abs_diff") for row in rows]),
        "failed_attempts": sum(int(row["attempts/failed"]) for row in rows),
        "peak_memory_gib": round(peak_bytes / 2**30, 3),
        **extra,
    }


def draw_rewards(path: Path, rows: Sequence[Mapping[str, Any]], scores: Scores) -> None:
    """Draw the reward of each step's attempts and of the held-out tasks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    known = [(row["step"], row["reward/mean"]) for row in rows if row.get("reward/mean") is not None]
    if known:
        steps, rewards = zip(*known, strict=True)
        axes.plot(steps, rewards, color="tab:blue", alpha=0.4, label="training attempts")
        axes.plot(steps, _smoothed(rewards), color="tab:blue", label="their running mean")
    if scores.by_step:
        steps, rewards = zip(*sorted(scores.by_step.items()), strict=True)
        axes.plot(steps, rewards, "o--", color="tab:orange", label="held-out tasks")
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path, dpi=120)


def print_report(console: Console, summary: Mapping[str, Any], groups: Sequence[Group], folder: Path) -> None:
    """Print what changed, where the time went, and two episodes."""
    table = Table(title="Held-out tasks" if summary["before"] is not None else "The run")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_row("mean reward on held-out tasks", shown_number(summary["before"]), shown_number(summary["after"]))
    rewards = [reward for reward in summary["rewards"] if reward is not None]
    if rewards:
        table.add_row("mean reward in training (first, last step)", shown_number(rewards[0]), shown_number(rewards[-1]))
    console.print(table)
    stages = ", ".join(f"{name} {value:.0f} s" for name, value in summary["seconds_per_stage"].items() if value)
    console.print(f"{summary['steps']} steps: {stages}; {shown_number(summary['tokens_per_s'])} tokens/s", markup=False)
    print_episodes(console, groups)
    console.print(f"Everything is in {folder}", markup=False)


def print_episodes(console: Console, groups: Sequence[Group]) -> None:
    """Print one rewarded episode and one that was not, or any two."""
    for trajectory in _worth_seeing(groups):
        console.rule(Text(f"task {trajectory.task.id}, reward {trajectory.reward:g}"), characters="-")
        for message in trajectory.messages:
            console.print(f"{message['role']}: {message['content']}", markup=False)
    console.rule(characters="-")


def shown_number(value: float | None) -> str:
    """Return a number as tables show it."""
    return "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"


def _by_step(values: Mapping[int, object]) -> dict[str, object]:
    return {str(step): value for step, value in sorted(values.items())}


def _worth_seeing(groups: Sequence[Group]) -> list[Trajectory]:
    valid = sorted((t for g in groups for t in g.trajectories if t.is_valid), key=lambda t: t.reward)
    return [valid[-1], valid[0]] if len(valid) > 1 else valid


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _smoothed(rewards: Sequence[float], width: int = 5) -> list[float]:
    return [float(np.mean(rewards[max(0, end - width) : end])) for end in range(1, len(rewards) + 1)]
