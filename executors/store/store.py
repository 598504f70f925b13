"""Trajectories on disk: compressed JSONL that `zcat` shows to a person, with the tokens at the end of each line."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...errors import StoreError
from ..episodes.trajectory import Trajectory
from .format import SCHEMA, Record, StoredTrajectory, from_record, stored_record, to_record
from .parts import append, members, part_name, parts_in, step_of

_log = logging.getLogger(__name__)

Complain = Callable[[str], None]


class TrajectoryStore:
    """A folder with one part per step and one line per trajectory.

    What was cut off by a crash spoils neither the lines before it nor those written after.

    Args:
        folder: Made at the first write.
        env: What is played, as `--agent` has it; kept with each trajectory.
    """

    def __init__(self, folder: str | Path, *, env: str | None = None) -> None:
        self.folder = Path(folder)
        self.env = env
        self._last: tuple[Path, int] | None = None  # where this store wrote, and the size that it left

    def write(self, step: int, trajectories: Iterable[Trajectory]) -> Path:
        """Append trajectories to the part of `step`, on disk when this returns; return the part.

        Raises:
            StoreError: The disk does not take them; the part is then as it was before.
        """
        return self._write(step, [to_record(step, trajectory, self.env) for trajectory in trajectories])

    def copy(self, step: int, stored: Iterable[StoredTrajectory]) -> Path:
        """Append what was read from another store, with all that is known of its origin; as `write`."""
        return self._write(step, [stored_record(one) for one in stored])

    def parts(self) -> list[Path]:
        """Return the files, in the order of steps."""
        return parts_in(self.folder)

    def read(self, complain: Complain = _log.warning) -> Iterator[StoredTrajectory]:
        """Yield everything, in the order of steps; a broken line is left out, and `complain` told.

        Raises:
            TrajectoryError: A line was written by a newer format.
        """
        for path in self.parts():
            yield from read_part(path, complain)

    def forget_after(self, step: int) -> None:
        """Remove the parts of later steps, which are taken again."""
        for path in self.parts():
            if (step_of(path) or 0) > step:
                path.unlink()

    def _write(self, step: int, records: list[Record]) -> Path:
        path = self.folder / part_name(step)
        lines = [_encoded(record) for record in records]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sound_size = self._last[1] if self._last is not None and self._last[0] == path else None
            self._last = path, append(path, lines, sound_size)
        except OSError as error:
            raise StoreError(
                f"{len(lines)} trajectories of step {step} cannot be written to {str(path)!r}: "
                f"{error.strerror or error}; free some space, or keep fewer by --logger.trajectories_per_step"
            ) from error
        return path


def read_part(path: Path, complain: Complain) -> Iterator[StoredTrajectory]:
    """Yield what one file of a store holds; as `TrajectoryStore.read`."""
    for source, record in read_records(path, complain):
        yield from_record(record, source)


def read_records(path: Path, complain: Complain) -> Iterator[tuple[str, Record]]:
    """Yield the lines of one file as JSON objects, with their places; broken ones are left out, and `complain` told."""
    before = 0
    for member in members(path):
        lines = member.text.split(b"\n")
        for number, line in enumerate(lines, start=1):
            source, is_last = f"{path}:{before + number}", number == len(lines)
            record = _decoded(line)
            if record is not None:
                yield source, record
            elif line.strip() or (is_last and not member.is_whole):
                complain(f"{source} is not a whole line of JSON; was a run cut off there? Left out")
        before += len(lines) - 1  # behind the last line end there is none


def _encoded(record: Record) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as some tokenizers decode: escape it
        return json.dumps(record, allow_nan=False).encode() + b"\n"


def _decoded(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:  # UnicodeDecodeError is one too
        return None
    return record if isinstance(record, dict) and "schema" in record else None


__all__ = ["SCHEMA", "StoredTrajectory", "TrajectoryStore", "read_part", "read_records"]
