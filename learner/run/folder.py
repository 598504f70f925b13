"""A run's folder: configuration, metrics, trajectories, checkpoints, the summary and its picture."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError, StoreError
from ...executors.store.parts import append_whole
from ...executors.store.store import TrajectoryStore

METRICS, SCHEDULE = "metrics.jsonl", "schedule.jsonl"


class RunFolder:
    """Writes what a run leaves, and reads what an earlier part of it left.

    Args:
        root: The folder; made if it is missing.
        resumes: Keep what is there. Otherwise an earlier run is moved to `NAME.previous`, in place of
            the one before it; one that finished no step is not worth that, and is written over.
        agent: What is trained, as `--agent` has it; kept with each trajectory.

    Raises:
        ConfigError: The folder cannot be written to, or holds a run and is where we stand.
    """

    def __init__(self, root: Path, *, resumes: bool, agent: str | None = None) -> None:
        self.root = root
        self.moved_to: Path | None = None
        try:
            if not resumes and (self.root / "config.yaml").exists():
                self._make_way()
            self.root.mkdir(parents=True, exist_ok=True)
            probe = self.root / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"--ckpt.output_dir {str(root)!r} cannot be written to: {error}") from error
        self._unwritten: dict[str, str] = {}  # lines by the name of their file
        self.train_store = TrajectoryStore(self.root / "trajectories" / "train", env=agent)
        self.eval_store = TrajectoryStore(self.root / "trajectories" / "eval", env=agent)

    @property
    def logs(self) -> Path:
        """What the processes print."""
        return self.root / "logs"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.root / "model"

    def write_config(self, text: str) -> None:
        """Write the configuration."""
        (self.root / "config.yaml").write_text(text)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add one step's numbers, and those that could not be written before.

        Raises:
            StoreError: The disk does not take them; they are written with the next, and the file is as it was before.
        """
        self._append(METRICS, metrics, "the numbers of this step")

    def append_schedule(self, row: Mapping[str, Any]) -> None:
        """Add what one step took and what sampled it; as `append_metrics`."""
        self._append(SCHEDULE, row, "the takings of this step")

    def forget_steps_after(self, step: int) -> list[dict[str, Any]]:
        """Remove what was written after this step, since it is taken again; return the numbers of those up to it."""
        for store in (self.train_store, self.eval_store):
            store.forget_after(step)
        self._keep_up_to(step, SCHEDULE)
        return self._keep_up_to(step, METRICS)

    def _append(self, name: str, row: Mapping[str, Any], what: str) -> None:
        lines = self._unwritten.get(name, "") + json.dumps(row) + "\n"
        path = self.root / name
        try:
            append_whole(path, lines.encode(), waits=False)
        except OSError as error:
            self._unwritten[name] = lines
            raise StoreError(
                f"{what} cannot be written to {str(path)!r}: {error.strerror or error}; free some space before the run "
                "ends, and they will be"
            ) from error
        self._unwritten.pop(name, None)

    def _keep_up_to(self, step: int, name: str) -> list[dict[str, Any]]:
        path = self.root / name
        if not path.exists():
            return []
        kept = [row for line in path.read_text().splitlines() if (row := _decoded(line)) and row["step"] <= step]
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.rename(path)
        return kept

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all."""
        temporary = self.root / "summary.json.part"
        temporary.write_text(json.dumps(summary, indent=1) + "\n")
        temporary.rename(self.root / "summary.json")

    def _make_way(self) -> None:
        if Path.cwd().is_relative_to(self.root.resolve()):
            raise ConfigError(
                f"--ckpt.output_dir {str(self.root)!r} holds an earlier run and cannot be moved aside from within; "
                "name another folder, or go on with it by --ckpt.load_enable"
            )
        if not any((self.root / name).exists() for name in (METRICS, "checkpoints", "model")):
            shutil.rmtree(self.root / "trajectories", ignore_errors=True)
            return
        self.moved_to = self.root.with_name(f"{self.root.name}.previous")
        shutil.rmtree(self.moved_to, ignore_errors=True)
        self.root.rename(self.moved_to)


def _decoded(line: str) -> dict[str, Any] | None:
    """Return a row, or None for a line that a crash cut off."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row
