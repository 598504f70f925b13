"""Trajectories on disk: JSONL that a person can read, with the tokens at the end of each line."""

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .store_format import SCHEMA, from_record, to_record
from .trajectory import Trajectory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory and the step it belongs to."""

    step: int
    trajectory: Trajectory


class TrajectoryStore:
    """A folder with one file per step and one line per trajectory.

    A line that was cut off by a crash spoils neither the lines before it nor those written after.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def write(self, step: int, trajectories: Iterable[Trajectory]) -> Path:
        """Append trajectories to the file of `step`, on disk when this returns; return the file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:06d}.jsonl"
        lines = b"".join(_encoded(to_record(step, trajectory)) for trajectory in trajectories)
        with path.open("ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    lines = b"\n" + lines
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        return path

    def read(self) -> Iterator[StoredTrajectory]:
        """Yield everything, in the order of steps; a broken line is reported and left out.

        Raises:
            TrajectoryError: A line was written by a newer format.
        """
        for path in sorted(self.folder.glob("step_*.jsonl"), key=lambda path: (len(path.name), path.name)):
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    record = _decoded(line)
                    if record is None:
                        _log.warning(
                            "%s:%d is not a whole line of JSON; was a run cut off there? Left out", path, number
                        )
                        continue
                    step, trajectory = from_record(record, f"{path}:{number}")
                    yield StoredTrajectory(step, trajectory)


def _encoded(record: dict[str, object]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as some tokenizers decode: escape it
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def _decoded(line: bytes) -> dict[str, object] | None:
    try:
        record = json.loads(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    return record if isinstance(record, dict) and "schema" in record else None


__all__ = ["SCHEMA", "StoredTrajectory", "TrajectoryStore"]
