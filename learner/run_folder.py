"""A run's folder: configuration, metrics, trajectories, checkpoints, the summary and its picture."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..executors.store import TrajectoryStore


class RunFolder:
    """Writes what a run leaves, and reads what an earlier part of it left.

    Args:
        root: The folder; made if it is missing.
        resumes: Keep what is there. Otherwise an earlier run is moved to `NAME.previous`, in place of
            the one before it.
    """

    def __init__(self, root: Path, *, resumes: bool) -> None:
        self.root = root
        self.moved_to: Path | None = None
        if not resumes and (root / "config.yaml").exists():
            self.moved_to = root.with_name(f"{root.name}.previous")
            shutil.rmtree(self.moved_to, ignore_errors=True)
            root.rename(self.moved_to)
        root.mkdir(parents=True, exist_ok=True)
        self.train_store = TrajectoryStore(root / "trajectories" / "train")
        self.eval_store = TrajectoryStore(root / "trajectories" / "eval")

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
        """Add one step's numbers."""
        with (self.root / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(metrics) + "\n")

    def read_metrics(self, up_to_step: int) -> list[dict[str, Any]]:
        """Return the numbers of the steps so far, and forget later ones: they are taken again."""
        path = self.root / "metrics.jsonl"
        if not path.exists():
            return []
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        kept = [row for row in rows if row["step"] <= up_to_step]
        temporary = path.with_suffix(".part")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
        temporary.rename(path)
        for stale in (self.root / "trajectories").glob("*/step_*.jsonl"):
            if int(stale.stem.removeprefix("step_")) > up_to_step:
                stale.unlink()
        return kept

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, whole or not at all."""
        temporary = self.root / "summary.json.part"
        temporary.write_text(json.dumps(summary, indent=1) + "\n")
        temporary.rename(self.root / "summary.json")
