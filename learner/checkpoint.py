"""Checkpoints on disk: complete or absent, a few of them, the newest first."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError

_DONE = "driver.json"  # written last and atomically: a folder without it was cut off half-way


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
        """Mark a checkpoint complete, and drop the oldest beyond the number to keep."""
        folder = self.root / self.tag(step)
        temporary = folder / f"{_DONE}.part"
        temporary.write_text(json.dumps({"step": step, "state": state}, indent=1))
        temporary.rename(folder / _DONE)
        complete = sorted(path.parent for path in self.root.glob(f"step_*/{_DONE}"))
        for old in complete[: -self._max_num]:
            shutil.rmtree(old)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest complete checkpoint, and the names of newer ones that were cut off.

        Raises:
            CheckpointError: A complete one cannot be read.
        """
        cut_off: list[str] = []
        for folder in sorted(self.root.glob("step_*"), reverse=True):
            done = folder / _DONE
            if not done.exists():
                cut_off.append(folder.name)
                continue
            try:
                content = json.loads(done.read_text())
                return Checkpoint(folder, int(content["step"]), content["state"]), cut_off
            except (ValueError, KeyError) as error:
                raise CheckpointError(
                    f"{done} cannot be read ({error}); remove {folder} to use an older one"
                ) from error
        return None, cut_off
