"""What each turn answers for, against what its siblings got.

The credit says which scores are compared, and with what:

* `outcome`: an attempt's reward with those of its group; every token of the attempt has the result, discounted by
  the attempt's tokens that follow.
* `discounted`: the same, discounted by the attempt's turns that follow.
* `turn`: a turn's own reward and those of later turns, discounted per turn, with the same turn (by its number) of
  the group's other attempts, as far as they got there.
* `turn_group`: `outcome` without a discount, plus a weight times the turn's rewards as under `turn`, with all turns
  of the group that began in the same state (GiGPO, arXiv:2505.10978).

Attempts that share a token, since they branched off one trunk after it, are no comparison for it: what they got
depends on it. Of n attempts let m share it. Its m advantages against the mean of all n sum to (n - m) / n times
those against the mean of the n - m others, where it would be (n - 1) / n if each attempt stood alone. So they are
multiplied by (n - 1) / (n - m), and the expected gradient is that of n independent attempts (exactly where only a
mean is subtracted, and undiscounted). If all share it, nobody is left to compare with, and it gets exactly 0.
"""

# A attempts, T turns, M action tokens, U turns that have action tokens

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import TrajectoryError
from .base import AdvantageInputs, Floats, Ints
from .moments import Groups, group_statistics, statistics
from .steps import steps_of

Compare = Callable[[Floats, Groups], Floats]
"""From scores and the statistics of their groups to what each is worth against its group."""

NO_STATE = -1


@dataclass(frozen=True)
class Relative:
    """What each action token's score is worth, before penalties and whitening."""

    scores_M: Floats
    has_signal_M: NDArray[np.bool_]  # somebody with another score was there to compare with
    metrics: dict[str, float] = field(default_factory=dict)


def relative(inputs: AdvantageInputs, compare: Compare) -> Relative:
    """Score each action token as the credit has it."""
    if inputs.credit == "turn":
        turns = _Turns.of(inputs)
        group_U = turns.group_U * (int(turns.turn_U.max(initial=0)) + 1) + turns.turn_U
        return turns.compared(inputs, group_U, compare)
    episodes = _episodes(inputs, compare)
    if inputs.credit == "turn_group":
        turns = _Turns.of(inputs)
        within = turns.compared(inputs, _same_state(inputs, turns), compare)
        return Relative(
            episodes.scores_M + inputs.turn_group_weight * within.scores_M,
            episodes.has_signal_M | within.has_signal_M,
            within.metrics,
        )
    return Relative(episodes.scores_M * _discount_to_the_end(inputs), episodes.has_signal_M)


def turn_returns(inputs: AdvantageInputs) -> Floats:
    """Return float64 [A, T]: each turn's reward and later ones, discounted per turn."""
    if inputs.turn_rewards_AT is None:
        raise TrajectoryError(f"credit {inputs.credit!r} needs turn_rewards_AT, each turn's share of the reward")
    returns_AT = np.where(inputs.is_valid_A[:, None], inputs.turn_rewards_AT, 0.0)
    for turn in reversed(range(returns_AT.shape[1] - 1)):
        returns_AT[:, turn] += inputs.gamma * returns_AT[:, turn + 1]
    return returns_AT


@dataclass(frozen=True)
class _Turns:
    """Every turn of a valid attempt that has action tokens."""

    group_U: Ints
    attempt_U: Ints
    turn_U: Ints
    returns_U: Floats
    turn_of_M: Ints  # index among these of each action token's turn

    @staticmethod
    def of(inputs: AdvantageInputs) -> "_Turns":
        returns_AT = turn_returns(inputs)
        num_turns = max(1, returns_AT.shape[1])
        code_U, turn_of_M = np.unique(inputs.attempt_M * num_turns + inputs.turn_M, return_inverse=True)
        attempt_U, turn_U = np.divmod(code_U, num_turns)
        _, group_A = np.unique(inputs.group_A, return_inverse=True)
        return _Turns(group_A[attempt_U], attempt_U, turn_U, returns_AT[attempt_U, turn_U], turn_of_M)

    def compared(self, inputs: AdvantageInputs, group_U: Ints, compare: Compare) -> Relative:
        groups = statistics(self.returns_U, group_U)
        scores_U = compare(self.returns_U, groups)
        without = float((~groups.has_signal_A).sum())
        metrics = {"turns/compared": float(len(scores_U)), "turns/without_signal": without}
        return _against_others(inputs, scores_U, groups, self.turn_of_M, metrics)


def _episodes(inputs: AdvantageInputs, compare: Compare) -> Relative:
    groups = group_statistics(inputs)
    rewards_A = np.where(inputs.is_valid_A, inputs.rewards_A, 0.0)
    return _against_others(inputs, compare(rewards_A, groups), groups, inputs.attempt_M, {})


def _against_others(
    inputs: AdvantageInputs, scores_A: Floats, groups: Groups, place_M: Ints, metrics: dict[str, float]
) -> Relative:
    """Give each token the score at its place, made up for the attempts that share the token."""
    scores_M, has_signal_M = scores_A[place_M], groups.has_signal_A[place_M]
    if inputs.sharing_M is not None:
        others_M = groups.count_A[place_M] - inputs.sharing_M
        scores_M = np.where(others_M > 0, scores_M * (groups.count_A[place_M] - 1) / np.maximum(others_M, 1), 0.0)
        has_signal_M = has_signal_M & (others_M > 0)
    return Relative(scores_M, has_signal_M, metrics)


def _same_state(inputs: AdvantageInputs, turns: _Turns) -> Ints:
    """Number turns alike that began in one state of one group; a turn without a state is alone."""
    assert inputs.states_AT is not None  # AdvantageInputs saw to it
    state_U = inputs.states_AT[turns.attempt_U, turns.turn_U]
    alone_U = np.where(state_U == NO_STATE, np.arange(len(state_U)), -1)
    keys = np.stack([turns.group_U, state_U, alone_U])
    return np.unique(keys, axis=1, return_inverse=True)[1].reshape(-1)


def _discount_to_the_end(inputs: AdvantageInputs) -> Floats:
    """Discount by the tokens that follow in the attempt, or by the turns."""
    if inputs.gamma == 1:
        return np.ones(len(inputs.attempt_M))
    if inputs.credit == "outcome":
        steps = steps_of(inputs)
        return inputs.gamma ** steps.scatter(steps.num_later_M.astype(np.float64))
    last_turn_A = np.zeros(len(inputs.rewards_A), np.int64)
    np.maximum.at(last_turn_A, inputs.attempt_M, inputs.turn_M)
    return inputs.gamma ** (last_turn_A[inputs.attempt_M] - inputs.turn_M).astype(np.float64)
