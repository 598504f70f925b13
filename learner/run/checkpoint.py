"""Checkpoints on disk: complete or absent, a few of them, the newest first.

A checkpoint counts once `driver.json` stands in it. That is written last, when everything else is on the disk, and
lists the other files with their sizes: a folder that lacks one, or has one that was cut off, is passed over.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, ConfigError

_DONE = "driver.json"
_UNUSED = "driver.unused.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder and what the driver wrote."""

    path: Path
    step: int
    state: dict[str, Any]

    def check_written_by(self, reader: Mapping[str, str | int]) -> None:
        """Refuse a run that cannot read the shards.

        Raises:
            ConfigError: It has another number of ranks, another dtype or another architecture.
        """
        writer = self.state["written_by"]
        for what, value in reader.items():
            written = writer.get(what, "none")
            if written != value:
                raise ConfigError(
                    f"checkpoint {self.path} was written with {what} {written}, and this run has {value}; "
                    "go on with the same, or begin anew without --ckpt.load_enable"
                )


class CheckpointFolder:
    """The checkpoints of one run."""

    def __init__(self, root: Path, max_num: int) -> None:
        self.root = root
        self._max_num = max_num

    def tag(self, step: int) -> str:
        """Return the name of the checkpoint after `step` steps; the ranks write into that folder."""
        return f"step_{step:06d}"

    def begin(self, step: int) -> str:
        """Make room for a checkpoint, removing a half-written one of the same step, and return its tag."""
        folder = self.root / self.tag(step)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder.name

    def finish(self, step: int, state: dict[str, Any]) -> None:
        """Mark a checkpoint complete once it is on the disk."""
        folder = self.root / self.tag(step)
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
        for path in (*_files(folder), *_folders(folder)):
            _sync(path)
        temporary = folder / f"{_DONE}.part"
        temporary.write_text(json.dumps({"step": step, "state": state, "sizes": sizes}, indent=1))
        _sync(temporary)
        temporary.rename(folder / _DONE)
        for path in (folder, self.root):
            _sync(path)

    def abandon(self, step: int) -> None:
        """Remove what was written of a checkpoint that does not fit on the disk, as far as that works."""
        folder = self.root / self.tag(step)
        with contextlib.suppress(OSError):
            (folder / _DONE).unlink(missing_ok=True)  # where only the last sync failed
        shutil.rmtree(folder, ignore_errors=True)

    def drop_oldest(self, newest: int) -> list[str]:
        """Remove the oldest beyond the number to keep; return a line for each that does not let itself be removed.

        Args:
            newest: Step of the one that was written last. Those of later steps are of a run that went on otherwise,
                passed over since they were damaged: they take no other's place, and do not count any more.
        """
        complaints: list[str] = []
        complete = sorted(path.parent for path in self.root.glob(f"step_*/{_DONE}"))
        later = [folder for folder in complete if folder.name > self.tag(newest)]
        for folder in later:
            try:
                (folder / _DONE).rename(folder / _UNUSED)
            except OSError as error:
                complaints.append(f"the damaged checkpoint {str(folder)!r} cannot be put aside: {error}")
        for old in complete[: len(complete) - len(later)][: -self._max_num]:
            try:
                (old / _DONE).unlink()  # first, so that what is half removed does not count
                shutil.rmtree(old)
            except OSError as error:
                complaints.append(f"the old checkpoint {str(old)!r} cannot be removed: {error}")
        return complaints

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest complete checkpoint, and a line for each newer one that cannot be used, with the reason.

        Raises:
            CheckpointError: One was complete and is damaged, and there is no older one to go on from.
        """
        passed_over: list[str] = []
        was_complete = False
        for folder in sorted(self.root.glob("step_*"), reverse=True):
            if (folder / _UNUSED).exists():
                continue
            if not (folder / _DONE).exists():
                passed_over.append(f"checkpoint {folder.name} was cut off half-way and is not used")
                continue
            try:
                return _read(folder), passed_over
            except CheckpointError as error:
                was_complete = True
                passed_over.append(f"checkpoint {folder.name} is damaged and is not used: {error}")
        if was_complete:
            raise CheckpointError(
                f"no checkpoint in {self.root} can be used: {'; '.join(passed_over)}; "
                "put back what is missing, or remove them to begin at the first step"
            )
        return None, passed_over


def _read(folder: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        CheckpointError: It is not as it was written.
    """
    try:
        content = json.loads((folder / _DONE).read_text())
        found = Checkpoint(folder, int(content["step"]), content["state"])
        sizes: dict[str, int] = content["sizes"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{_DONE} cannot be read ({type(error).__name__}: {error})") from error
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{name} is missing")
        if (length := path.stat().st_size) != size:
            raise CheckpointError(f"{name} has {length} bytes, and {size} were written")
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != f"{_DONE}.part")


def _folders(folder: Path) -> list[Path]:
    return [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]


def _sync(path: Path) -> None:
    """Have a file or a folder's entries on the disk before anything relies on them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
