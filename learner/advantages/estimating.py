"""Running an estimator by its name, and what is logged of every one."""

# A attempts, M action tokens

import numpy as np

from ...errors import TrajectoryError
from .base import ESTIMATORS, AdvantageInputs, Advantages, Floats
from .moments import group_statistics

LARGEST = float(np.finfo(np.float32).max)  # a batch carries advantages and returns in float32


def estimate(name: str, inputs: AdvantageInputs) -> Advantages:
    """Run an estimator.

    Raises:
        TrajectoryError: An advantage or a return is not finite in float32, or what led to it is not in float64
            (rewards so large that their sum or square overflows).
    """
    try:
        # An overflow that ends in a finite number (1e300 over an infinite deviation is 0) is no less wrong.
        with np.errstate(over="raise", invalid="ignore", divide="ignore"):
            result = ESTIMATORS[name](inputs)
            made = result if isinstance(result, Advantages) else Advantages(result)
            arrays = [made.advantages_M] if made.returns_M is None else [made.advantages_M, made.returns_M]
            if not all((np.abs(array) <= LARGEST).all() for array in arrays):
                raise FloatingPointError("not finite in float32")
            return Advantages(made.advantages_M, _metrics(inputs, made.advantages_M) | made.metrics, made.returns_M)
    except FloatingPointError as error:
        largest = np.abs(inputs.rewards_A[inputs.is_valid_A]).max(initial=0.0)
        raise TrajectoryError(
            f"{name!r} gave advantages that are not finite; the largest reward is {largest}: clip it"
        ) from error


def _metrics(inputs: AdvantageInputs, advantages_M: Floats) -> dict[str, float]:
    groups, valid = group_statistics(inputs), inputs.is_valid_A
    metrics = {
        "attempts/valid": float(valid.sum()),
        "attempts/lone_survivors": float((valid & (groups.count_A == 1)).sum()),
        "attempts/without_signal": float((valid & ~groups.has_signal_A).sum()),
    }
    if valid.any():
        metrics["reward/mean"] = float(inputs.rewards_A[valid].mean())
        metrics["reward/std"] = float(inputs.rewards_A[valid].std())
        metrics["reward/group_std"] = float(groups.std_A[valid].mean())
    if len(advantages_M):
        metrics["advantage/mean"] = float(advantages_M.mean())
        metrics["advantage/std"] = float(advantages_M.std())
        metrics["advantage/abs_max"] = float(np.abs(advantages_M).max())
    return metrics
