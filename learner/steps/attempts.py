"""What came of one step's attempts, in numbers."""

# A attempts

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ...envs.mixed_tasks import member_of
from ...executors.episodes.trajectory import Trajectory


def rollout_metrics(
    trajectories: Sequence[Trajectory], seconds: float, members: Sequence[str] = ()
) -> dict[str, float]:
    """Return what came of a step's attempts, and how fast; of a mixture, how many were for each of its members."""
    valid = [t for t in trajectories if t.is_valid]
    tokens = sum(t.num_sampled for t in trajectories)
    metrics: dict[str, float] = {
        "rollout/tokens": tokens,
        "rollout/tokens_per_s": tokens / seconds,
        "rollout/turns": sum(t.num_turns for t in trajectories) / max(1, len(trajectories)),
        "attempts/failed": len(trajectories) - len(valid),
        "attempts/retries": sum(len(t.earlier_failures) for t in trajectories),
    }
    if any(t.branch_of for t in trajectories):
        metrics["attempts/branched"] = sum(t.branch_of is not None for t in trajectories)
        metrics["attempts/copies"] = sum(t.branch_of is not None and t.branch_of[1] + 1 >= t.num_turns for t in valid)
    for trajectory in trajectories:
        reason = trajectory.failure.kind if trajectory.failure else trajectory.end_reason
        name = f"{'failures' if trajectory.failure else 'ends'}/{reason.value}"
        metrics[name] = metrics.get(name, 0) + 1
    for member in members:
        own = [t for t in trajectories if member_of(t.task.id) == member]
        metrics[f"attempts/{member}/number"] = len(own)
        metrics[f"attempts/{member}/failed"] = sum(not t.is_valid for t in own)
    for name in sorted({name for t in valid for name in t.extra_logs}):
        known = [t.extra_logs[name] for t in valid if name in t.extra_logs]
        metrics[f"env/{name}"] = float(np.mean(known))
    return metrics


def member_means(members: Sequence[str], task_ids: Sequence[str], rewards_A: NDArray[np.float64]) -> dict[str, float]:
    """Return the mean reward of each member of a mixture that has one; NaN is none."""
    of_A = np.array([member_of(task_id) for task_id in task_ids])
    known = {member: rewards_A[(of_A == member) & np.isfinite(rewards_A)] for member in members}
    return {member: float(rewards.mean()) for member, rewards in known.items() if len(rewards)}


def staleness_metrics(
    trajectories: Sequence[Trajectory], version: int, counts: Mapping[str, int], num_ready: int
) -> dict[str, float]:
    """Return how old the tokens are that a step learns from, in versions, and what did not come this far."""
    lags = [version - t.oldest_version for t in trajectories if t.is_valid and t.oldest_version is not None]
    spans = [t.num_versions for t in trajectories if t.is_valid]
    metrics = {f"rollouts/{name}": float(count) for name, count in counts.items()}
    metrics["rollouts/ready"] = float(num_ready)
    if lags:
        metrics |= {"staleness/mean": float(np.mean(lags)), "staleness/max": float(max(lags))}
        metrics["staleness/spanning"] = float(np.mean([span > 1 for span in spans]))
    return metrics
