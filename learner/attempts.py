"""What came of one step's attempts: their metrics, and whether too many failed."""

from collections.abc import Sequence

import numpy as np

from ..errors import TrajectoryError
from ..executors.trajectory import Trajectory


def rollout_metrics(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, float]:
    """Return what came of a step's attempts, and how fast."""
    valid = [t for t in trajectories if t.is_valid]
    tokens = sum(t.num_actions for t in trajectories)
    metrics: dict[str, float] = {
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/turns": sum(t.num_turns for t in trajectories) / max(1, len(trajectories)),
        "attempts/failed": len(trajectories) - len(valid),
        "attempts/retries": sum(len(t.earlier_failures) for t in trajectories),
    }
    for trajectory in trajectories:
        reason = trajectory.failure.kind if trajectory.failure else trajectory.end_reason
        name = f"{'failures' if trajectory.failure else 'ends'}/{reason.value}"
        metrics[name] = metrics.get(name, 0) + 1
    for name in sorted({name for t in valid for name in t.extra_logs}):
        known = [t.extra_logs[name] for t in valid if name in t.extra_logs]
        metrics[f"env/{name}"] = float(np.mean(known))
    return metrics


def check_failures(trajectories: Sequence[Trajectory], max_failed_fraction: float) -> None:
    """Stop the run where too many attempts failed.

    Raises:
        TrajectoryError: More than this share of them failed, or all.
    """
    failures = [t.failure for t in trajectories if t.failure is not None]
    if len(failures) > max_failed_fraction * len(trajectories) or len(failures) == len(trajectories):
        raise TrajectoryError(
            f"{len(failures)} of {len(trajectories)} attempts of this step failed (--train.max_failed_fraction "
            f"{max_failed_fraction}); the first: {failures[0].kind.value}: {failures[0].message}"
        )
