"""What estimators take and give, and the table of their names.

Groups go by their number, never by position. What failed is absent from every statistic. All in float64: in
float32 the rounding of a mean, divided by a tiny deviation, becomes an advantage of 60 for equal rewards.
"""

# A attempts, G groups, M action tokens, T turns

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import TrajectoryError
from ...registry import Registry
from .needs import CREDITS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        sharing_M: int64, how many valid attempts of the group have this very token, in the trunk that they branched
            off; its own is one of them. By default only that.
        values_M: float64, the critic's estimate before each action token.
        policy_logprobs_M: float64, of the policy that the step starts from.
        teacher_logprobs_M: float64, of the teacher; -inf where it never says the token.
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
    sharing_M: Ints | None = None
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
        if len(self.turn_M) and self.turn_M.min() < 0:
            raise TrajectoryError(f"turns of action tokens count from 0, got {self.turn_M.min()}")
        self._check_tokens()
        self._check_turns()
        self._check_numbers()

    def _check_tokens(self) -> None:
        for name in ("sequence_M", "sharing_M", "penalty_M", "values_M", "policy_logprobs_M", "teacher_logprobs_M"):
            array = getattr(self, name)
            if array is None:
                continue
            if array.shape != self.attempt_M.shape:
                raise TrajectoryError(f"{name} of shape {self.attempt_M.shape} wanted, got {array.shape}")
            is_good = np.isfinite(array) | ((array == -np.inf) & (name == "teacher_logprobs_M"))
            if not is_good.all():
                token = int(np.argmin(is_good))
                raise TrajectoryError(
                    f"{name} is {array[token]} at action token {token} (attempt {self.attempt_M[token]}, turn "
                    f"{self.turn_M[token]}); wanted a finite number: has the model diverged?"
                )

    def _check_turns(self) -> None:
        num_turns = int(self.turn_M.max()) + 1 if len(self.turn_M) else 0
        for name in ("turn_rewards_AT", "states_AT"):
            array = getattr(self, name)
            if array is not None and not (
                array.ndim == 2 and len(array) == len(self.rewards_A) and array.shape[1] >= num_turns
            ):
                raise TrajectoryError(
                    f"{name} for {len(self.rewards_A)} attempts and {num_turns} turns wanted, got shape {array.shape}"
                )
        if self.turn_rewards_AT is None:
            return
        rows, rewards = self.turn_rewards_AT[self.is_valid_A], self.rewards_A[self.is_valid_A]
        if not np.isfinite(rows).all():
            raise TrajectoryError("a turn's reward of a valid attempt is not finite; mark the attempt failed")
        slack = 1e-6 * (1 + np.abs(rows).max(axis=1, initial=0.0))
        bad = np.flatnonzero(np.abs(rows.sum(axis=1) - rewards) > slack)
        if len(bad):
            raise TrajectoryError(
                f"the turns of attempt {np.flatnonzero(self.is_valid_A)[bad[0]]} have rewards that sum to "
                f"{rows[bad[0]].sum()}, its own is {rewards[bad[0]]}; shape both alike (`turn_rewards`)"
            )

    def _check_numbers(self) -> None:
        for name in ("gamma", "lambd"):
            if not 0 <= getattr(self, name) <= 1:
                raise TrajectoryError(f"{name} between 0 and 1 wanted, got {getattr(self, name)}")
        if not np.isfinite(self.turn_group_weight):
            raise TrajectoryError(f"turn_group_weight must be a finite number, got {self.turn_group_weight}")
        if self.credit not in CREDITS:
            raise TrajectoryError(f"credit must be one of {', '.join(CREDITS)}; got {self.credit!r}")
        if self.credit in ("turn", "turn_group") and self.turn_rewards_AT is None:
            raise TrajectoryError(f"credit {self.credit!r} needs turn_rewards_AT, each turn's share of the reward")
        if self.credit == "turn_group" and self.states_AT is None:
            raise TrajectoryError("credit 'turn_group' needs states_AT, the state that each turn began in")


@dataclass(frozen=True)
class Advantages:
    """One advantage per action token, what to log, and what a critic is to learn."""

    advantages_M: Floats
    metrics: dict[str, float] = field(default_factory=dict)
    returns_M: Floats | None = None


ESTIMATORS: Registry[Callable[[AdvantageInputs], Floats | Advantages]] = Registry("advantage estimator")
"""Functions from the inputs to advantages per action token, bare or with metrics and returns of their own."""
