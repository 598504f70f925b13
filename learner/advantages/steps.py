"""Action tokens in the order of time, and sums over what is still to come.

Only action tokens are steps: what an environment said between two turns neither discounts nor delays anything.
"""

# A attempts, M action tokens, U turns that have action tokens

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import TrajectoryError
from .base import AdvantageInputs, Floats, Ints


@dataclass(frozen=True)
class Steps:
    """All action tokens, attempt after attempt and within one by turn, then by position.

    Later means by turn, then by position, over all sequences of an attempt: a context that was compacted goes on in
    time where the one before it ended. Every array is in this order.
    """

    order_M: Ints  # index of each step among the inputs' tokens
    attempt_M: Ints
    turn_M: Ints
    is_last_M: NDArray[np.bool_]  # of its attempt
    num_later_M: Ints  # steps of the attempt that follow

    def scatter(self, values_M: Floats) -> Floats:
        """Put values of steps back into the inputs' order."""
        scattered = np.empty(len(values_M))
        scattered[self.order_M] = values_M
        return scattered

    def next_of(self, values_M: Floats) -> Floats:
        """Return the value of each step's successor; 0 where there is none."""
        return np.where(self.is_last_M, 0.0, np.roll(values_M, -1))

    def turns_until_next(self) -> Ints:
        """Return how many turns later each step's successor lies; 0 where there is none."""
        return np.where(self.is_last_M, 0, np.roll(self.turn_M, -1) - self.turn_M)


def steps_of(inputs: AdvantageInputs) -> Steps:
    """Put the inputs' action tokens into the order of time."""
    order_M = np.lexsort((inputs.turn_M, inputs.attempt_M))  # stable: positions keep their order within a turn
    return _steps(order_M, inputs.attempt_M[order_M], inputs.turn_M[order_M])


def turns_as_steps(steps: Steps) -> tuple[Steps, Ints]:
    """Return one step per turn that has action tokens, and the index of each token's turn among them."""
    is_first_M = np.ones(len(steps.order_M), bool)
    is_first_M[1:] = (np.diff(steps.attempt_M) != 0) | (np.diff(steps.turn_M) != 0)
    first_U = np.flatnonzero(is_first_M)
    return _steps(first_U, steps.attempt_M[first_U], steps.turn_M[first_U]), np.cumsum(is_first_M) - 1


def _steps(order_M: Ints, attempt_M: Ints, turn_M: Ints) -> Steps:
    ends_M = np.searchsorted(attempt_M, attempt_M, side="right")
    num_later_M = ends_M - 1 - np.arange(len(attempt_M))
    return Steps(order_M, attempt_M, turn_M, num_later_M == 0, num_later_M)


def accumulate(values_M: Floats, decay_M: Floats, steps: Steps) -> Floats:
    """Return y of each step, where y = its value + its decay * y of the next step of its attempt.

    One pass over positions counted from the end, each for all attempts that are long enough.
    """
    sums_M = values_M.astype(np.float64)
    last_A = np.flatnonzero(steps.is_last_M)
    length_A = np.diff(last_A, prepend=-1)
    by_length = np.argsort(-length_A, kind="stable")
    last_A, length_A = last_A[by_length], length_A[by_length]
    for num_back in range(1, int(length_A[0]) if len(length_A) else 0):
        at = last_A[: np.searchsorted(-length_A, -num_back)] - num_back  # attempts longer than num_back
        sums_M[at] += decay_M[at] * sums_M[at + 1]
    return sums_M


def penalty_to_go(inputs: AdvantageInputs) -> Floats:
    """Sum each token's penalty and all later ones of its attempt, discounted as the credit has it.

    gamma acts per token under credit `outcome` and per turn under the others. This is OpenRLHF's KL in the reward:
    per token, after the baseline (verl and TRL put the sum into the score before it).
    """
    if not inputs.penalty_M.any():
        return np.zeros(len(inputs.penalty_M))
    steps = steps_of(inputs)
    if inputs.credit == "outcome":
        decay_M = np.full(len(steps.order_M), inputs.gamma)
    else:
        decay_M = inputs.gamma ** steps.turns_until_next()
    return steps.scatter(accumulate(inputs.penalty_M[steps.order_M], decay_M, steps))


def check_succession(inputs: AdvantageInputs, steps: Steps, estimator: str) -> None:
    """Refuse attempts whose sequences do not follow one another in time.

    Raises:
        TrajectoryError: A sequence comes back after another one began (a sub-agent ran beside it or returned), so
            that the value of one context would be taken for what follows in another.
    """
    if inputs.sequence_M is None or not len(steps.order_M):
        return
    sequence_M = inputs.sequence_M[steps.order_M]
    begins = np.ones(len(sequence_M), bool)
    begins[1:] = (np.diff(sequence_M) != 0) | (np.diff(steps.attempt_M) != 0)
    runs = np.stack([steps.attempt_M[begins], sequence_M[begins]], axis=1)
    pairs, counts = np.unique(runs, axis=0, return_counts=True)
    if (counts > 1).any():
        attempt, sequence = pairs[np.argmax(counts > 1)]
        raise TrajectoryError(
            f"{estimator!r} follows an attempt in time, but in attempt {attempt} sequence {sequence} comes back after "
            "another one began (a sub-agent beside it, or one that returned); use an estimator without a critic, "
            "such as 'reinforce_baseline' or 'group_norm'"
        )
