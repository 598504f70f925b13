"""From rewards to one advantage per action token.

Groups go by their number, never by position. What failed is absent from every statistic. All in float64: in
float32 the rounding of a mean, divided by a tiny deviation, becomes an advantage of 60 for equal rewards.
"""

# A attempts, G groups, M action tokens, T turns

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import TrajectoryError
from ..registry import Registry

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GROUP_STD_EPS = 1e-9
WHITEN_MIN_VARIANCE = 1e-8


@dataclass(frozen=True)
class AdvantageInputs:
    """What an estimator may look at.

    Attributes:
        rewards_A: float64, of each attempt; anything where it is not valid.
        is_valid_A: bool; the attempt neither failed nor was filtered out.
        group_A: int64; attempts at the same task have the same number.
        attempt_M: int64, the attempt of each action token.
        turn_M: int64, its turn; the order of turns is the order of an attempt's tokens in time.
        penalty_M: float64, subtracted from the reward at each token (coefficient times KL); 0 without one.
        no_std_norm: Do not divide by a standard deviation.
        sequence_M: int64, the sequence each action token lies in; by default all of an attempt's lie in one.
        turn_rewards_AT: float64, each turn's share of the attempt's reward; 0 past its last turn.
        states_AT: int64, the state each turn began in; equal numbers are equal states, -1 is none.
        values_M: float64, the critic's estimate before each action token.
        policy_logprobs_M: float64, of the policy that the step starts from.
        teacher_logprobs_M: float64, of the teacher.
        gamma: Discount.
        lambd: Trace decay of gae.
        credit: Which reward a turn answers for: `outcome`, `discounted`, `turn` or `turn_group`.
        turn_group_weight: Weight of the turns' advantage beside the episodes' under `turn_group`.
    """

    rewards_A: Floats
    is_valid_A: NDArray[np.bool_]
    group_A: Ints
    attempt_M: Ints
    turn_M: Ints
    penalty_M: Floats
    no_std_norm: bool = False
    sequence_M: Ints | None = None
    turn_rewards_AT: Floats | None = None
    states_AT: Ints | None = None
    values_M: Floats | None = None
    policy_logprobs_M: Floats | None = None
    teacher_logprobs_M: Floats | None = None
    gamma: float = 1.0
    lambd: float = 1.0
    credit: str = "outcome"
    turn_group_weight: float = 1.0

    def __post_init__(self) -> None:
        if not len(self.rewards_A) == len(self.is_valid_A) == len(self.group_A):
            raise TrajectoryError(
                f"one reward, validity and group per attempt wanted, got {len(self.rewards_A)}, "
                f"{len(self.is_valid_A)} and {len(self.group_A)}"
            )
        if not len(self.attempt_M) == len(self.turn_M) == len(self.penalty_M):
            raise TrajectoryError(
                f"one attempt, turn and penalty per action token wanted, got {len(self.attempt_M)}, "
                f"{len(self.turn_M)} and {len(self.penalty_M)}"
            )
        bad = np.flatnonzero(self.is_valid_A & ~np.isfinite(self.rewards_A))
        if len(bad):
            raise TrajectoryError(f"reward {self.rewards_A[bad[0]]} of attempt {bad[0]} is not finite; mark it failed")
        if not self.is_valid_A[self.attempt_M].all():
            raise TrajectoryError("an action token belongs to an attempt that is not valid; leave its tokens out")


@dataclass(frozen=True)
class Groups:
    """Statistics of each attempt's group over its valid attempts, one per attempt.

    `has_signal_A` holds where the group has at least two valid attempts whose rewards differ (max > min, exactly).
    """

    count_A: Ints
    mean_A: Floats
    std_A: Floats  # n - 1; 0 without signal
    has_signal_A: NDArray[np.bool_]


@dataclass(frozen=True)
class Advantages:
    """One advantage per action token, what to log, and what a critic is to learn."""

    advantages_M: Floats
    metrics: dict[str, float]
    returns_M: Floats | None = None


ESTIMATORS: Registry[Callable[[AdvantageInputs], Floats]] = Registry("advantage estimator")
"""Functions from the inputs to advantages per action token."""


@ESTIMATORS.register("group_norm")
def group_norm(inputs: AdvantageInputs) -> Floats:
    """Subtract the group's mean and divide by its deviation (GRPO, arXiv:2402.03300, outcome supervision).

    The deviation has n - 1, as everywhere, and eps 1e-9, as in OpenRLHF (verl 1e-6, TRL 1e-4). A lone survivor
    and a group of equal rewards get exactly 0. With `no_std_norm` only the mean is subtracted.
    """
    groups = group_statistics(inputs)
    advantages_A = _centred(inputs, groups)
    if not inputs.no_std_norm:
        advantages_A = advantages_A / (groups.std_A + GROUP_STD_EPS)
    return advantages_A[inputs.attempt_M] - penalty_to_go(inputs)


@ESTIMATORS.register("reinforce_baseline")
def reinforce_baseline(inputs: AdvantageInputs) -> Floats:
    """Subtract the group's mean, then whiten over all action tokens (REINFORCE++-baseline, arXiv:2501.03262).

    Whitening is OpenRLHF's: moments over tokens, divided by their number, variance at least 1e-8 (verl divides by
    n - 1 and adds 1e-8); `no_std_norm` leaves the deviation out and still subtracts the mean. Groups without
    signal count as zeros in the moments, as there, but their own rewards stay at exactly 0 after it: the
    batch's mean says nothing about an attempt that has nobody to be compared with.
    """
    groups = group_statistics(inputs)
    reward_M = _centred(inputs, groups)[inputs.attempt_M]
    penalty_M = penalty_to_go(inputs)
    mean, scale = _whitening(reward_M - penalty_M, inputs.no_std_norm)
    shift_M = np.where(groups.has_signal_A[inputs.attempt_M], mean, 0.0)
    whitened_M: Floats = (reward_M - penalty_M - shift_M) * scale
    return whitened_M


def estimate(name: str, inputs: AdvantageInputs) -> Advantages:
    """Run an estimator.

    Raises:
        TrajectoryError: An advantage is not finite (rewards so large that their sum overflows).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        advantages_M = ESTIMATORS[name](inputs)
    if not np.isfinite(advantages_M).all():
        largest = np.abs(inputs.rewards_A[inputs.is_valid_A]).max()
        raise TrajectoryError(f"{name!r} gave advantages that are not finite; the largest reward is {largest}: clip it")
    return Advantages(advantages_M, _metrics(inputs, advantages_M))


def clip_rewards(rewards_A: ArrayLike, clip_range: tuple[float, float]) -> Floats:
    """Clip raw rewards, before any baseline (as TRL; OpenRLHF clips what the baseline left)."""
    return np.clip(np.asarray(rewards_A, dtype=np.float64), *clip_range)


def group_statistics(inputs: AdvantageInputs) -> Groups:
    """Return count, mean, deviation and signal of each attempt's group."""
    _, group_A = np.unique(inputs.group_A, return_inverse=True)
    num_groups = int(group_A.max()) + 1 if len(group_A) else 0
    valid_group, rewards = group_A[inputs.is_valid_A], inputs.rewards_A[inputs.is_valid_A]
    count_G = np.bincount(valid_group, minlength=num_groups)
    low_G, high_G = np.full(num_groups, np.inf), np.full(num_groups, -np.inf)
    np.minimum.at(low_G, valid_group, rewards)
    np.maximum.at(high_G, valid_group, rewards)
    mean_G = np.bincount(valid_group, rewards, num_groups) / np.maximum(count_G, 1)
    squares_G = np.bincount(valid_group, (rewards - mean_G[valid_group]) ** 2, num_groups)
    has_signal_G = high_G > low_G
    std_G = np.sqrt(np.where(has_signal_G, squares_G / np.maximum(count_G - 1, 1), 0.0))
    return Groups(count_G[group_A], mean_G[group_A], std_G[group_A], has_signal_G[group_A])


def penalty_to_go(inputs: AdvantageInputs) -> Floats:
    """Sum each token's penalty and all later ones of its attempt.

    Later means by turn, then by position, over all sequences of the attempt; context tokens are no steps. This
    is OpenRLHF's KL in the reward: per token, after the baseline (verl and TRL put the sum into the score before it).
    """
    order = np.lexsort((inputs.turn_M, inputs.attempt_M))  # stable: positions keep their order within a turn
    attempts, penalties = inputs.attempt_M[order], inputs.penalty_M[order]
    before = np.concatenate([[0.0], np.cumsum(penalties)])
    ends = np.searchsorted(attempts, attempts, side="right")
    to_go = np.empty(len(order))
    to_go[order] = before[ends] - before[:-1]
    return to_go


def _centred(inputs: AdvantageInputs, groups: Groups) -> Floats:
    return np.where(inputs.is_valid_A & groups.has_signal_A, inputs.rewards_A - groups.mean_A, 0.0)


def _whitening(values_M: Floats, no_std_norm: bool) -> tuple[float, float]:
    """Return what to subtract and what to multiply with."""
    if not len(values_M):
        return 0.0, 1.0
    scale = 1.0 if no_std_norm else 1 / np.sqrt(max(values_M.var(), WHITEN_MIN_VARIANCE))
    return float(values_M.mean()), float(scale)


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
