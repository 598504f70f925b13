"""One episode for the eye: the conversation by turns, with what was sampled, rewarded and broken."""

import itertools
import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...envs.images import Image
from ...envs.messages import Message
from ..episodes.trajectory import Failure, Trajectory
from ..store.format import plain
from .recording import Recorded
from .terminal import one_line, shown
from .turns import Turn, turns_of

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def print_episode(console: "Console", episode: Recorded, *, tokens: bool) -> None:
    """Print an episode; with `tokens` also ids, logprobs and versions of what was sampled."""
    _line(console, shown(f"{episode.split} {episode.id}".strip()), "bold")
    for name, text in _facts(episode):
        _line(console, f"  {name:<10} {text}")
    turns, image_numbers = turns_of(episode.trajectory), itertools.count(1)
    for turn in turns:
        if turn.number >= 0:
            print_turn_line(console, turn)
        for message in ([turn.completion] if turn.completion else []) + list(turn.observation):
            _print_message(console, message, image_numbers)
        if tokens and turn.number >= 0:
            _print_tokens(console, turn)
    if (failure := episode.trajectory.failure) is not None:
        _line(console, f"\nFAILED {_described(failure)}", "bold red")


def print_turn_line(console: "Console", turn: Turn) -> None:
    """Print what a turn came to."""
    reward = "no reward" if turn.reward is None else f"reward {turn.reward:.6g}"
    end = turn.end.value if turn.end else "-"
    facts = [f"turn {turn.number}", reward, f"ended by {end}", f"{len(turn.token_ids)} tokens"]
    if len(turn.versions):
        facts.append(f"version {_runs(turn)}")
    _line(console, "\n--- " + ", ".join(facts), "bold")


def _facts(episode: Recorded) -> list[tuple[str, str]]:
    trajectory = episode.trajectory
    facts = [("env", episode.stored.env or "not known")]
    if trajectory.task.label is not None:
        facts.append(("label", one_line(json.dumps(plain(trajectory.task.label), ensure_ascii=False))))
    if trajectory.is_valid:
        score = "none" if trajectory.score is None else f"{trajectory.score:.6g}"
        facts += [("reward", f"{trajectory.reward:.6g}"), ("score", score)]
    facts.append(("end", _end(trajectory)))
    facts.append(("seconds", ", ".join(f"{stage} {value:.3f}" for stage, value in trajectory.seconds.items())))
    if trajectory.engine is not None:
        facts.append(("engine", str(trajectory.engine)))
    if trajectory.extra_logs:
        facts.append(("logs", ", ".join(f"{shown(name)} {value:g}" for name, value in trajectory.extra_logs.items())))
    if (branch := trajectory.branch_of) is not None:
        facts.append(("branch", f"off attempt {branch[0]}, whose turns up to {branch[1]} it shares"))
    facts += [("before", f"began again: {_described(failure)}") for failure in trajectory.earlier_failures]
    facts += [
        (f"sequence {place}", f"{len(sequence)} tokens, branched off {sequence.parent[0]} at {sequence.parent[1]}: "
         f"{one_line(sequence.fork_reason or 'not known')}")
        for place, sequence in enumerate(trajectory.sequences)
        if sequence.parent is not None
    ]  # fmt: skip
    return facts


def _end(trajectory: Trajectory) -> str:
    turns = f"{trajectory.num_turns} turns, {trajectory.num_actions} tokens"
    return f"{trajectory.end_reason.value} after {turns}"


def _described(failure: Failure) -> str:
    return f"{failure.kind.value} in turn {failure.turn}: {shown(failure.message)}"


def _print_message(console: "Console", message: Message, image_numbers: Iterator[int]) -> None:
    role = message["role"]
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "\n".join(_part(part, image_numbers) for part in content)
    extra = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    if extra:
        text = f"{text}\n{json.dumps(extra, ensure_ascii=False)}".lstrip("\n")
    _line(console, f"[{role}]", f"bold {STYLES.get(role, '')}")
    _line(console, shown(text))


def _part(part: dict[str, Any], image_numbers: Iterator[int]) -> str:  # Any: JSON, and images
    if isinstance(image := part.get("image"), Image):
        return f"image {next(image_numbers)} ({image.width}x{image.height})"
    return str(part["text"]) if part.keys() <= {"type", "text"} and "text" in part else json.dumps(plain(part))


def _print_tokens(console: "Console", turn: Turn) -> None:
    _line(console, f"  ids       {' '.join(map(str, turn.token_ids.tolist()))}", "dim")
    _line(console, f"  logprobs  {' '.join(f'{logprob:.6g}' for logprob in turn.logprobs.tolist())}", "dim")
    _line(console, f"  versions  {_runs(turn)}", "dim")


def _runs(turn: Turn) -> str:
    """Return the versions of a turn's tokens, each with how many tokens it sampled where there are several."""
    runs = [(version, len(list(same))) for version, same in groupby(turn.versions.tolist())]
    return str(runs[0][0]) if len(runs) == 1 else ", ".join(f"{version} for {count} tokens" for version, count in runs)


def _line(console: "Console", text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(text, style=style))
