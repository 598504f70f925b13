"""Finished groups in a checkpoint: what the learner had not taken yet is learned from after a restart."""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ..store.format import from_record, to_record
from .buffer import Finished, Group
from .draws import Draw

FINISHED = "finished.jsonl.gz"


def write_finished(path: Path, finished: Sequence[Finished]) -> None:
    """Write groups, one to a line; tasks are written by their serials."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for one in finished:
            attempts = [to_record(0, t) for t in one.group.trajectories]
            file.write(json.dumps({"serial": one.draw.serial, "began": one.began, "attempts": attempts}) + "\n")


def read_finished(path: Path, named: Callable[[int], Draw]) -> list[Finished]:
    """Read what `write_finished` wrote; `named` gives the task of a serial.

    Raises:
        CheckpointError: The file is missing, or not whole.
    """
    found: list[Finished] = []
    try:
        with gzip.open(path, "rt") as file:
            for number, line in enumerate(file, start=1):
                found.append(_finished(json.loads(line), f"{path}:{number}", named))
    except (OSError, EOFError, zlib.error, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {error}); it holds the groups that wait for the learner: "
            "remove its checkpoint to go on from the one before"
        ) from error
    return found


def _finished(record: dict[str, Any], source: str, named: Callable[[int], Draw]) -> Finished:
    draw = named(record["serial"])
    attempts = [from_record(attempt, source).trajectory for attempt in record["attempts"]]
    return Finished(draw, Group(draw.task, tuple(replace(t, task=draw.task) for t in attempts)), record["began"])
