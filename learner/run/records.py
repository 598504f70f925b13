"""What a run writes for eyes: it says loudly what the disk does not take, and goes on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import StoreError
from ...executors.episodes.trajectory import Trajectory
from ...executors.store.store import TrajectoryStore
from .folder import RunFolder

Say = Callable[[str], None]


def keep_trajectories(
    store: TrajectoryStore, step: int, trajectories: Sequence[Trajectory], say: Say
) -> dict[str, float]:
    """Write trajectories and return how many were lost, as a metric."""
    try:
        store.write(step, trajectories)
    except StoreError as error:
        say(f"WARNING: {error}. The run goes on without them")
        return {"store/lost": len(trajectories)}
    return {"store/lost": 0}


def keep_metrics(folder: RunFolder, row: Mapping[str, Any], say: Say) -> None:  # Any: JSON
    """Write one step's numbers, which are kept for the next step where the disk does not take them."""
    try:
        folder.append_metrics(row)
    except StoreError as error:
        say(f"WARNING: {error}. The run goes on")


def keep_schedule(folder: RunFolder, row: Mapping[str, Any], say: Say) -> None:  # Any: JSON
    """Write what a step took and what sampled it, kept for the next step where the disk does not take it."""
    try:
        folder.append_schedule(row)
    except StoreError as error:
        say(f"WARNING: {error}. The run goes on")
