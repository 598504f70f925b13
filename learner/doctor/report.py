"""A diagnosis for people, and as JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .diagnosis import Diagnosis
from .finding import Severity
from .folder import Run
from .series import SHORTEST_TREND, Series

COLOURS = {Severity.PROBLEM: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}

LOOKED_AT: dict[str, Callable[[Run], Series]] = {
    "training reward": lambda run: run.series("reward/mean"),
    "attempts that failed": lambda run: run.per_attempt("attempts/failed"),
    "attempts without signal": lambda run: run.share("attempts/without_signal", "attempts/valid"),
    "tokens per attempt": lambda run: run.per_attempt("rollout/tokens"),
    "entropy": lambda run: run.series("policy/entropy"),
    "gradient norm": lambda run: run.series("policy/grad_norm"),
    "learning rate": lambda run: run.series("policy/lr"),
    "KL to the reference": lambda run: run.series("kl/reference"),
    "mismatch, abs_diff": lambda run: run.series("mismatch/abs_diff"),
    "mismatch, kl_k3": lambda run: run.series("mismatch/kl_k3"),
    "effective share after correction": lambda run: run.series("is_weight/effective_size"),
}
"""What is shown of a run whatever was found."""


def headline(run: Run) -> str:
    """Return how far the run came and what its reward did, in one or two sentences."""
    state = "still going, or killed" if run.summary is None else "complete" if run.is_complete else "interrupted"
    if not run.rows:
        return f"No step was completed ({state})."
    return f"{len(run.rows)} steps, {state}. {_training(run)}{_held_out(run)}"


def as_json(run: Run, diagnosis: Diagnosis) -> dict[str, Any]:  # Any: JSON
    """Return a diagnosis as JSON's values."""
    return {
        "run": str(run.root),
        "steps": len(run.rows),
        "is_complete": run.is_complete,
        "headline": headline(run),
        "findings": [{"check": name, **asdict(finding)} for name, finding in diagnosis.findings.items()],
        "looked_at": looked_at(run),
        "not_known": {name: list(lacking) for name, lacking in diagnosis.not_known.items()},
        "complaints": list(run.complaints),
    }


def looked_at(run: Run) -> dict[str, Mapping[str, float]]:
    """Return early, late and number of steps of each number that is known."""
    shown: dict[str, Mapping[str, float]] = {}
    for title, number in LOOKED_AT.items():
        series = number(run)
        if len(series):
            shown[title] = {"early": series.early, "late": series.late, "steps": len(series)}
    return shown


def print_diagnosis(console: Console, run: Run, diagnosis: Diagnosis) -> None:
    """Print findings, worst first, then what was looked at and what is not known."""
    console.print(Text(f"{run.root}: {headline(run)}"))
    for complaint in run.complaints:
        console.print(Text(f"  {complaint}"))
    for finding in diagnosis.findings.values():
        line = Text(f"\n{finding.severity.upper()} in {finding.stage}: ", style=COLOURS[finding.severity])
        console.print(line + Text(finding.title, style="bold"))
        for sentence in finding.evidence:
            console.print(Text(f"  - {sentence}"))
        console.print(Text(f"  To do: {finding.what_to_do}"))
    if not diagnosis.findings:
        console.print(Text(f"\n{_nothing_found(run)}"))
    _print_numbers(console, run)
    console.print(Text(f"{diagnosis.num_looked} checks ran."))
    if diagnosis.not_known:
        console.print(Text(f"{len(diagnosis.not_known)} did not, since the run tells nothing of what they look at:"))
    for name, lacking in diagnosis.not_known.items():
        console.print(Text(f"  {name}: {'; '.join(lacking)}"))


def _nothing_found(run: Run) -> str:
    if not run.rows:
        return "There is no step to look at; logs/processes says what engines and learner printed."
    reward = run.series("reward/mean")
    if len(reward) < SHORTEST_TREND or reward.rises:
        return "Nothing wrong was found."
    return (
        "Nothing wrong was found, and yet the reward does not rise: no check that ran explains it. Take more steps, or "
        "a higher learning rate."
    )


def _print_numbers(console: Console, run: Run) -> None:
    numbers = looked_at(run)
    if not numbers:
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("looked at", "first quarter", "last quarter", "steps"):
        table.add_column(column, justify="left" if column == "looked at" else "right")
    for title, values in numbers.items():
        table.add_row(title, f"{values['early']:.3g}", f"{values['late']:.3g}", f"{values['steps']:.0f}")
    console.print()
    console.print(table)


def _training(run: Run) -> str:
    reward = run.series("reward/mean")
    if not len(reward):
        return "Training reward is not known."
    if len(reward) < SHORTEST_TREND:
        return f"Training reward {reward.late:.3g}; too few steps to speak of a trend."
    course = "rises" if reward.rises else "falls" if reward.falls else "is flat"
    return f"Training reward {course}: {reward.early:.3g} at first, {reward.late:.3g} in the last quarter."


def _held_out(run: Run) -> str:
    scores = ", ".join(f"{score.reward:.3g} (step {step})" for step, score in run.held_out.items())
    return f" Held-out reward {scores}." if scores else ""
