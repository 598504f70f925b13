"""Moments of groups and of the batch, over valid attempts only."""

# A attempts (or turns, where turns are compared), G groups, M action tokens

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .base import AdvantageInputs, Floats, Ints

WHITEN_MIN_VARIANCE = 1e-8


@dataclass(frozen=True)
class Groups:
    """Statistics of each attempt's group over its valid attempts, one per attempt.

    `has_signal_A` holds where the group has at least two valid attempts whose rewards differ (max > min, exactly).
    """

    count_A: Ints
    mean_A: Floats
    std_A: Floats  # n - 1; 0 without signal
    has_signal_A: NDArray[np.bool_]


def group_statistics(inputs: AdvantageInputs) -> Groups:
    """Return count, mean, deviation and signal of each attempt's group."""
    return statistics(inputs.rewards_A, inputs.group_A, inputs.is_valid_A)


def statistics(scores_A: Floats, group_A: Ints, is_valid_A: NDArray[np.bool_] | None = None) -> Groups:
    """Return count, mean, deviation and signal of the group that each score belongs to."""
    _, group_A = np.unique(group_A, return_inverse=True)
    num_groups = int(group_A.max()) + 1 if len(group_A) else 0
    valid = np.ones(len(group_A), bool) if is_valid_A is None else is_valid_A
    group, scores = group_A[valid], scores_A[valid]
    count_G = np.bincount(group, minlength=num_groups)
    low_G, high_G = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(low_G, group, scores)
    np.maximum.at(high_G, group, scores)
    has_signal_G = high_G > low_G
    sum_G = np.bincount(group, scores, num_groups)
    # Equal scores are their own mean, without the rounding (and the overflow) of a sum.
    mean_G = np.where(has_signal_G, sum_G / np.maximum(count_G, 1), np.where(count_G > 0, low_G, 0.0))
    squares_G = np.bincount(group, (scores - mean_G[group]) ** 2, num_groups)
    std_G = np.sqrt(np.where(has_signal_G, squares_G / np.maximum(count_G - 1, 1), 0.0))
    return Groups(count_G[group_A], mean_G[group_A], std_G[group_A], has_signal_G[group_A])


def whitening(values_M: Floats, no_std_norm: bool) -> tuple[float, float]:
    """Return what to subtract and what to multiply with, so that all tokens have mean 0 and deviation 1.

    OpenRLHF's: moments over action tokens, divided by their number, variance at least 1e-8 (verl divides by n - 1
    and adds 1e-8, and raises for one token). `no_std_norm` leaves the deviation out and still subtracts the mean.
    """
    if not len(values_M):
        return 0.0, 1.0
    if values_M.min() == values_M.max():
        return float(values_M[0]), 1.0  # exactly: the rounding of their mean, divided by 1e-4, would be a gradient
    scale = 1.0 if no_std_norm else 1 / np.sqrt(max(values_M.var(), WHITEN_MIN_VARIANCE))
    return float(values_M.mean()), float(scale)


def whitened(values_M: Floats, no_std_norm: bool) -> Floats:
    """Return the values after `whitening`."""
    mean, scale = whitening(values_M, no_std_norm)
    return (values_M - mean) * scale
