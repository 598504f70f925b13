"""A run folder, parsed: what cannot be read becomes a complaint, what is absent is not known."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, TrajectoryError
from ...executors.store.format import from_record
from ...executors.store.parts import parts_in
from ...executors.store.store import StoredTrajectory, read_records
from .series import Series

Json = dict[str, Any]  # Any: JSON

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
TRAIN_EPISODES = "training episodes"
EVALUATIONS = "evaluations"

MOST_FILES = 64
"""Files of episodes that are read, spread evenly over the run: a folder may hold gigabytes of them."""


@dataclass(frozen=True)
class HeldOut:
    """One evaluation: mean over tasks of the mean over their valid attempts, and its standard error if known."""

    reward: float
    error: float | None
    num_tasks: int | None


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    Attributes:
        root: The folder.
        rows: Metrics, one mapping for each step.
        settings: The configuration; None when it could not be read.
        summary: None while the run goes on, and after it was killed.
        train, held_out_episodes: Episodes, at most those of `MOST_FILES` steps each.
        complaints: What could not be read, or was cut off.
    """

    root: Path
    rows: tuple[Json, ...]
    settings: Json | None
    summary: Json | None
    train: tuple[StoredTrajectory, ...]
    held_out_episodes: tuple[StoredTrajectory, ...]
    complaints: tuple[str, ...]

    @property
    def last_step(self) -> int:
        """The last step in the metrics; 0 without any."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end."""
        return self.summary is not None and self.summary.get("is_complete") is True

    def series(self, name: str) -> Series:
        """Return a metric over the steps that know it as a finite number."""
        known = [(int(row["step"]), float(row[name])) for row in self.rows if _is_number(row.get(name))]
        return Series(tuple(step for step, _ in known), tuple(value for _, value in known))

    def share(self, part: str, *whole: str) -> Series:
        """Return a metric by the sum of others, over the steps that know all of them and where the sum is not 0."""
        return self._by(part, lambda row: _sum(row, whole))

    def per_attempt(self, name: str) -> Series:
        """Return a metric by the step's attempts: failed, filtered and masked ones included."""
        return self._by(name, _num_attempts)

    @property
    def num_attempts(self) -> float:
        """All attempts of all steps that tell how many they had."""
        return sum(_num_attempts(row) or 0.0 for row in self.rows)

    def setting(self, name: str) -> Any:  # Any: whatever YAML holds
        """Return an option by its dotted name; None when it is not known, or not set."""
        value: Any = self.settings
        for part in name.split("."):
            if not isinstance(value, Mapping):
                return None
            value = value.get(part)
        return value

    def number(self, name: str) -> float | None:
        """Return an option that is a number; None when it is not known."""
        value = self.setting(name)
        return float(value) if _is_number(value) else None

    def knows(self, need: str) -> bool:
        """Whether the folder holds a metric, an option or a kind of episodes; "a or b" is either."""
        return any(self._knows(name) for name in need.split(" or "))

    @cached_property
    def held_out(self) -> dict[int, HeldOut]:
        """Held-out rewards by step: from the episodes, else from the summary."""
        scores: dict[int, HeldOut] = {}
        for step, reward in ((self.summary or {}).get("eval_rewards") or {}).items():
            if _is_number(reward):
                scores[int(step)] = HeldOut(float(reward), None, None)
        rewards: dict[int, dict[str, list[float]]] = {}
        for stored in self.held_out_episodes:
            if stored.trajectory.is_valid:
                by_task = rewards.setdefault(stored.step, {})
                by_task.setdefault(stored.trajectory.task.id, []).append(stored.trajectory.reward)
        for step, by_task in rewards.items():
            means = [float(np.mean(values)) for values in by_task.values()]
            error = float(np.std(means, ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None
            scores[step] = HeldOut(float(np.mean(means)), error, len(means))
        return dict(sorted(scores.items()))

    def _by(self, name: str, whole: Callable[[Json], float | None]) -> Series:
        pairs = [(row, whole(row)) for row in self.rows if _is_number(row.get(name))]
        known = [(int(row["step"]), float(row[name]) / total) for row, total in pairs if total]
        return Series(tuple(step for step, _ in known), tuple(value for _, value in known))

    def _knows(self, name: str) -> bool:
        if name == TRAIN_EPISODES:
            return bool(self.train)
        if name == EVALUATIONS:
            return len(self.held_out) > 1
        return self.setting(name) is not None or len(self.series(name)) > 0


def read_run(root: Path) -> Run:
    """Read a run folder.

    Raises:
        ConfigError: It is no run's.
    """
    if not root.is_dir():
        raise ConfigError(f"there is no folder {str(root)!r}; wanted a run's (--ckpt.output_dir of turngym train)")
    if not any((root / name).is_file() for name in (CONFIG, METRICS, SUMMARY)):
        raise ConfigError(
            f"{str(root)!r} is no run folder: it holds none of {CONFIG}, {METRICS} and {SUMMARY}; "
            "name the folder that --ckpt.output_dir named"
        )
    complaints: list[str] = []
    return Run(
        root=root,
        rows=_rows(root / METRICS, complaints),
        settings=_settings(root / CONFIG, complaints),
        summary=_summary(root / SUMMARY, complaints),
        train=_episodes(root / "trajectories" / "train", complaints),
        held_out_episodes=_episodes(root / "trajectories" / "eval", complaints),
        complaints=tuple(complaints),
    )


def _rows(path: Path, complaints: list[str]) -> tuple[Json, ...]:
    if not path.is_file():
        complaints.append(f"there is no {METRICS}: no step was completed")
        return ()
    rows: dict[int, Json] = {}
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, start=1):
        row = _object(line)
        if row is not None and _is_number(row.get("step")):
            rows[int(row["step"])] = row  # a step that was taken again counts as it was taken last
        elif line.strip():
            end = "the run was cut off while it wrote it" if number == len(lines) else "it is left out"
            complaints.append(f"line {number} of {METRICS} is no whole row: {end}")
    return tuple(rows[step] for step in sorted(rows))


def _settings(path: Path, complaints: list[str]) -> Json | None:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        complaints.append(f"there is no {CONFIG}: options are not known")
        return None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        complaints.append(f"{CONFIG} is not YAML, options are not known: {' '.join(str(error).split())}")
        return None
    if isinstance(content, dict):
        return content
    complaints.append(f"{CONFIG} holds no mapping: options are not known")
    return None


def _summary(path: Path, complaints: list[str]) -> Json | None:
    if not path.is_file():
        complaints.append(f"there is no {SUMMARY}: the run is still going, or was killed")
        return None
    summary = _object(path.read_bytes())
    if summary is None:
        complaints.append(f"{SUMMARY} is no JSON object")
    return summary


def _episodes(folder: Path, complaints: list[str]) -> tuple[StoredTrajectory, ...]:
    paths = parts_in(folder)
    if len(paths) > MOST_FILES:
        complaints.append(f"of {len(paths)} steps in trajectories/{folder.name}, {MOST_FILES} were read")
        paths = [paths[i] for i in np.linspace(0, len(paths) - 1, MOST_FILES).round().astype(int)]
    episodes: list[StoredTrajectory] = []
    for path in paths:
        for source, record in read_records(path, complaints.append):
            try:
                episodes.append(from_record(record, source))
            except TrajectoryError as error:  # another format
                complaints.append(str(error))
    return tuple(episodes)


def _sum(row: Json, names: Sequence[str]) -> float | None:
    return float(sum(row[name] for name in names)) if all(_is_number(row.get(name)) for name in names) else None


def _num_attempts(row: Json) -> float | None:
    """Each attempt has one end or one failure; what is valid may have been filtered or masked since."""
    ends = [value for name, value in row.items() if name.startswith(("ends/", "failures/")) and _is_number(value)]
    return float(sum(ends)) if ends else _sum(row, ("attempts/failed", "attempts/valid"))


def _object(line: bytes) -> Json | None:
    try:
        content = json.loads(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    return content if isinstance(content, dict) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
