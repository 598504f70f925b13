"""`turngym traces view`: episodes as a table, or as a JSON object a line."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...registry import nearest
from ..store.format import stored_record
from ..store.store import Complain
from .conversation import print_episode
from .options import Selection, ViewOptions
from .recording import Recorded, check_selection, none_selected, open_recording
from .terminal import console, one_line

MOST_ROWS = 200
COLUMNS = (
    "split", "step", "task", "attempt", "reward", "score", "turns", "tokens", "end", "seconds", "engine", "version"
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """An episode in short; reward and score of an attempt that failed are not known."""

    split: str
    step: int
    task: str
    attempt: int
    reward: float | None
    score: float | None
    turns: int
    tokens: int
    end: str
    seconds: float | None
    engine: int | None
    oldest_version: int | None
    newest_version: int | None
    branch_of: tuple[int, int] | None
    failure: dict[str, Any] | None  # Any: kind, message and turn


SORTED_BY: dict[str, Callable[[Row], Any]] = {  # Any: numbers and names
    "step": lambda row: row.step,
    "task": lambda row: row.task,
    "attempt": lambda row: row.attempt,
    "reward": lambda row: row.reward,
    "score": lambda row: row.score,
    "turns": lambda row: row.turns,
    "tokens": lambda row: row.tokens,
    "end": lambda row: row.end,
    "seconds": lambda row: row.seconds,
    "engine": lambda row: row.engine,
    "version": lambda row: row.oldest_version,
}


def view(run: Path, selection: Selection, options: ViewOptions, complain: Complain) -> int:
    """Print what is selected: the episodes of an id whole, others a line each.

    Raises:
        ConfigError: There is nothing, or an option cannot be.
    """
    check_selection(selection)
    if options.sort is not None and options.sort not in SORTED_BY:
        raise ConfigError(f"--sort: unknown column {options.sort!r}.{nearest(options.sort, SORTED_BY)}")
    if options.limit is not None and options.limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {options.limit}")
    is_list = selection.id is None
    if options.tokens and is_list:
        raise ConfigError("--tokens is for one episode; name it: STEP/TASK/ATTEMPT")
    if not is_list and (options.sort or options.descending or options.limit):
        raise ConfigError("--sort, --descending and --limit are for a list, and one episode is named")
    recording = open_recording(run)
    episodes = recording.episodes(selection, complain)
    if not is_list:
        found = list(episodes)
        _print_whole(found, options)
        if not found:
            raise none_selected(recording, selection)
        return 0
    rows = _sorted([row_of(episode) for episode in episodes], options)
    if not rows:
        raise none_selected(recording, selection)
    most = options.limit or (len(rows) if options.json else MOST_ROWS)
    if options.json:
        for row in rows[:most]:
            print(json.dumps(asdict(row)))
        return 0
    _print_table(rows[:most])
    print(summary(rows) + (f"; the first {most} are shown, --limit shows more" if most < len(rows) else ""))
    return 0


def row_of(episode: Recorded) -> Row:
    """Return an episode in short."""
    trajectory, failure = episode.trajectory, episode.trajectory.failure
    newest = [int(s.versions.max()) for s in trajectory.sequences if s.num_actions]
    return Row(
        split=episode.split,
        step=episode.stored.step,
        task=trajectory.task.id,
        attempt=trajectory.attempt,
        reward=trajectory.reward if failure is None else None,
        score=trajectory.score if failure is None else None,
        turns=trajectory.num_turns,
        tokens=trajectory.num_actions,
        end=trajectory.end_reason.value if failure is None else f"failed: {failure.kind.value}",
        seconds=trajectory.seconds.get("total"),
        engine=trajectory.engine,
        oldest_version=trajectory.oldest_version,
        newest_version=max(newest, default=None),
        branch_of=trajectory.branch_of,
        failure=None if failure is None else asdict(failure),
    )


def summary(rows: list[Row]) -> str:
    """Return how many there are, how many failed, and the mean reward of the others."""
    rewards = [row.reward for row in rows if row.reward is not None]
    parts = [f"{len(rows)} episodes"]
    if len(rewards) < len(rows):
        parts.append(f"{len(rows) - len(rewards)} failed")
    if rewards:
        parts.append(f"mean reward {sum(rewards) / len(rewards):.4g}")
    return ", ".join(parts)


def _sorted(rows: list[Row], options: ViewOptions) -> list[Row]:
    if options.sort is None:
        return rows[::-1] if options.descending else rows
    key = SORTED_BY[options.sort]
    known = sorted((row for row in rows if key(row) is not None), key=key, reverse=options.descending)
    return known + [row for row in rows if key(row) is None]


def _print_table(rows: Iterable[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in COLUMNS:
        is_text = name in ("split", "task", "end")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=name != "task")
    for row in rows:
        cells = [
            row.split,
            str(row.step),
            one_line(row.task),
            str(row.attempt) if row.branch_of is None else f"{row.attempt} of {row.branch_of[0]}",
            _number(row.reward),
            _number(row.score),
            str(row.turns),
            str(row.tokens),
            row.end,
            _number(row.seconds, ".2f"),
            "-" if row.engine is None else str(row.engine),
            _versions(row),
        ]
        table.add_row(*map(Text, cells), style="yellow" if row.failure else "")
    console().print(table)


def _print_whole(episodes: list[Recorded], options: ViewOptions) -> None:
    for place, episode in enumerate(episodes):
        if options.json:
            print(json.dumps({**stored_record(episode.stored), "split": episode.split}))
            continue
        if place:
            print()
        print_episode(console(), episode, tokens=options.tokens)


def _number(value: float | None, form: str = ".4g") -> str:
    return "-" if value is None else format(value, form)


def _versions(row: Row) -> str:
    if row.oldest_version is None:
        return "-"
    is_one = row.oldest_version == row.newest_version
    return str(row.oldest_version) if is_one else f"{row.oldest_version}-{row.newest_version}"
