"""Finished groups in a checkpoint: what the learner had not taken yet is learned from after a restart."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .buffer import Finished, Group
from .draws import Draw
from .store_format import from_record, to_record

FINISHED = "finished.jsonl.gz"


def write_finished(path: Path, finished: Sequence[Finished]) -> None:
    """Write groups, one to a line; tasks are written by their serials."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for one in finished:
            attempts = [to_record(0, t) for t in one.group.trajectories]
            file.write(json.dumps({"serial": one.draw.serial, "began": one.began, "attempts": attempts}) + "\n")


def read_finished(path: Path, named: Callable[[int], Draw]) -> list[Finished]:
    """Read what `write_finished` wrote; `named` gives the task of a serial."""
    found: list[Finished] = []
    with gzip.open(path, "rt") as file:
        for number, line in enumerate(file, start=1):
            record = json.loads(line)
            draw = named(record["serial"])
            attempts = [from_record(attempt, f"{path}:{number}").trajectory for attempt in record["attempts"]]
            group = Group(draw.task, tuple(replace(t, task=draw.task) for t in attempts))
            found.append(Finished(draw, group, record["began"]))
    return found
