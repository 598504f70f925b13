"""What a run did when: which groups each step took, at which version each began, which version sampled each turn.

A run writes it as `schedule.jsonl`, one line per step. `following.py` has another run do the same again.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, ScheduleError
from ..episodes.trajectory import FailureKind, Trajectory
from .buffer import Finished

Turns = tuple[int, ...]
"""The version that sampled each turn of an attempt."""

HELP = "write it by a run with the same options, and do not edit it"


@dataclass(frozen=True)
class GroupRecord:
    """The attempts at one task, as a step took them.

    Attributes:
        serial: Of the draw.
        task: Its id.
        began: The version of the weights when it was begun.
        turns: Of each attempt, in the order of their numbers.
        failed: Places in `turns` of those that failed.
        is_spanning: Some turn was sampled by more than one version, of which `turns` has the first.
    """

    serial: int
    task: str
    began: int
    turns: tuple[Turns, ...]
    failed: tuple[int, ...] = ()
    is_spanning: bool = False


@dataclass(frozen=True)
class StepRecord:
    """One step: the version that it learned on, and the groups of each time it took some."""

    step: int
    version: int
    takes: tuple[tuple[GroupRecord, ...], ...]


@dataclass(frozen=True)
class RolloutSchedule:
    """All steps of a run, in order."""

    steps: tuple[StepRecord, ...]

    @cached_property
    def of_serial(self) -> dict[int, tuple[int, GroupRecord]]:
        """Each group by its serial, with the step that took it; in the order of the serials."""
        found = {group.serial: (step.step, group) for step in self.steps for take in step.takes for group in take}
        return dict(sorted(found.items()))


def step_record(step: int, version: int, takes: Iterable[Sequence[Finished]]) -> StepRecord:
    """Return what a step did, from what it took."""
    return StepRecord(step, version, tuple(tuple(map(_group_record, finished)) for finished in takes))


def to_row(record: StepRecord) -> dict[str, Any]:  # Any: JSON
    """Return a step as a line of the file has it; turns as runs [version, count]."""
    return {
        "step": record.step,
        "version": record.version,
        "takes": [[_group_row(group) for group in take] for take in record.takes],
    }


def read_schedule(path: Path) -> RolloutSchedule:
    """Read what a run wrote.

    Raises:
        ConfigError: There is no such file, or it is no schedule that can be followed.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"the schedule {str(path)!r} cannot be read: {error.strerror or error}") from error
    steps: list[StepRecord] = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(_from_row(json.loads(line)))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}:{number} is no step of a schedule ({error!r}); {HELP}") from error
    if not steps:
        raise ConfigError(f"the schedule {str(path)!r} has no steps; {HELP}")
    _check(steps, path)
    return RolloutSchedule(tuple(steps))


def turn_versions(trajectory: Trajectory, began: int) -> tuple[Turns, bool]:
    """Return the version that sampled each turn, and whether one was sampled by several; then the first counts.

    A turn without a token counts as sampled with the one before it, or at version `began`.
    """
    found: dict[int, int] = {}
    is_spanning = False
    for sequence in trajectory.sequences:
        turns, versions = sequence.turn[sequence.is_action], sequence.versions[sequence.is_action]
        starts = np.flatnonzero(np.diff(turns, prepend=-1))
        found |= {int(turns[start]): int(versions[start]) for start in starts}
        is_spanning |= bool(((np.diff(versions) != 0) & (np.diff(turns) == 0)).any())
    last, turns_of = began, []
    for turn in range(trajectory.num_turns):
        last = found.get(turn, last)
        turns_of.append(last)
    return tuple(turns_of), is_spanning


def check_followed(step: int, group: GroupRecord, trajectory: Trajectory) -> None:
    """Compare an attempt with its record.

    Raises:
        ScheduleError: It did not do the same; the message names step, serial, attempt and turn.
    """
    then = group.turns[trajectory.attempt]
    now, _ = turn_versions(trajectory, group.began)
    turn = next((turn for turn, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    failure, had_failed = trajectory.failure, trajectory.attempt in group.failed
    if failure is not None and not had_failed:
        why = f"it failed now and not then: {failure.kind}: {failure.message}"
    elif failure is None and had_failed:
        why = "it failed then, and not now"
    elif then != now:
        why = f"the versions that sampled its turns were {list(then)} then, and are {list(now)} now"
    else:
        return
    raise ScheduleError(not_followed(step, group.serial, trajectory.attempt, turn, why))


def not_followed(step: int, serial: int, attempt: int, turn: int, why: str) -> str:
    """Return the message of a schedule that cannot be followed."""
    return (
        f"the schedule cannot be followed at step {step}, serial {serial}, attempt {attempt}, turn {turn}: {why}. "
        "A replay wants the same options, data, environment and code as the run that wrote it"
    )


def _group_record(finished: Finished) -> GroupRecord:
    attempts = sorted(finished.group.trajectories, key=lambda t: t.attempt)
    turns = [turn_versions(t, finished.began) for t in attempts]
    # What was too old when it was taken was whole until then, and will be too old again.
    failed = [place for place, t in enumerate(attempts) if t.failure and t.failure.kind is not FailureKind.STALE]
    return GroupRecord(
        serial=finished.draw.serial,
        task=finished.draw.task.id,
        began=finished.began,
        turns=tuple(versions for versions, _ in turns),
        failed=tuple(failed),
        is_spanning=any(spans for _, spans in turns),
    )


def _group_row(group: GroupRecord) -> dict[str, Any]:
    row: dict[str, Any] = {"serial": group.serial, "task": group.task, "began": group.began}
    row["turns"] = [[[v, len(list(run))] for v, run in itertools.groupby(turns)] for turns in group.turns]
    if group.failed:
        row["failed"] = list(group.failed)
    if group.is_spanning:
        row["spanning"] = True
    return row


def _from_row(row: dict[str, Any]) -> StepRecord:
    takes = tuple(tuple(map(_group_from_row, take)) for take in row["takes"])
    return StepRecord(int(row["step"]), int(row["version"]), takes)


def _group_from_row(row: dict[str, Any]) -> GroupRecord:
    turns = tuple(tuple(int(v) for v, count in runs for _ in range(count)) for runs in row["turns"])
    return GroupRecord(
        int(row["serial"]),
        str(row["task"]),
        int(row["began"]),
        turns,
        tuple(map(int, row.get("failed", ()))),
        bool(row.get("spanning", False)),
    )


def _check(steps: Sequence[StepRecord], path: Path) -> None:
    """Refuse what nobody can follow."""
    if [step.step for step in steps] != list(range(1, len(steps) + 1)):
        raise ConfigError(f"the steps of the schedule {str(path)!r} are not 1, 2, 3, ...; {HELP}")
    groups = [(step, group) for step in steps for take in step.takes for group in take]
    serials = [group.serial for _, group in groups]
    if len(set(serials)) < len(serials):
        raise ConfigError(f"the schedule {str(path)!r} has a serial twice; {HELP}")
    for step, group in groups:
        if group.is_spanning:
            raise ConfigError(
                f"the schedule {str(path)!r} cannot be followed: at step {step.step} serial {group.serial} has a turn "
                "whose tokens are of several versions (--train.partial_rollout_enable), and at which token an update "
                "comes cannot be repeated; record a run without"
            )
        newest = max((version for turns in group.turns for version in turns), default=group.began)
        if not all(group.began <= v for turns in group.turns for v in turns) or newest > step.version:
            raise ConfigError(
                f"the schedule {str(path)!r} has, at step {step.step}, serial {group.serial}, turns sampled before "
                f"version {group.began}, at which it began, or after {step.version}, at which it was taken; {HELP}"
            )
