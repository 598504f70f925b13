"""Generalised advantage estimation, with tokens or with turns as steps (GAE, arXiv:1506.02438).

Nothing follows the last step of an attempt, whether the task ended it or a limit did. What a critic is to learn are
the advantages before whitening plus its own values.
"""

# A attempts, T turns, M action tokens, U turns that have action tokens

import numpy as np

from ...errors import TrajectoryError
from .base import ESTIMATORS, AdvantageInputs, Advantages, Floats
from .moments import whitened
from .steps import Steps, accumulate, check_succession, steps_of, turns_as_steps


@ESTIMATORS.register("gae")
def gae(inputs: AdvantageInputs) -> Advantages:
    """Estimate with action tokens as steps; gamma and lambd act per token, also under credit `turn`.

    The reward stands on the attempt's last action token (credit `outcome`), or each turn's on the turn's last one
    (`turn`); penalties on each token. What stands between turns is left out, as if the attempt had been sampled in
    one piece: verl's meaning (OpenRLHF makes each environment token a step of value 0, so that a turn's end
    bootstraps from 0). Whitened over all action tokens, as in OpenRLHF.

    Raises:
        TrajectoryError: No values, or an attempt whose sequences do not follow one another in time.
    """
    steps = steps_of(inputs)
    values_M = _values(inputs, steps, "gae")
    rewards_M = _rewards(inputs, steps) - inputs.penalty_M[steps.order_M]
    deltas_M = rewards_M + inputs.gamma * steps.next_of(values_M) - values_M
    decay_M = np.full(len(deltas_M), inputs.gamma * inputs.lambd)
    advantages_M = accumulate(deltas_M, decay_M, steps)
    return _result(inputs, steps, advantages_M, values_M)


@ESTIMATORS.register("turn_gae")
def turn_gae(inputs: AdvantageInputs) -> Advantages:
    """Estimate with turns as steps; gamma and lambd act per turn.

    A turn's value is the critic's before its first action token; its reward is the attempt's on the last turn
    (credit `outcome`) or its own (`turn`), less the penalties of all its tokens. All its tokens have the turn's
    advantage, and for the critic the turn's return: what follows from any of them is the same. Neither OpenRLHF nor
    TRL has it. Whitened over all action tokens, like `gae`.

    Raises:
        TrajectoryError: No values, or an attempt whose sequences do not follow one another in time.
    """
    steps = steps_of(inputs)
    values_M = _values(inputs, steps, "turn_gae")
    turns, turn_of_M = turns_as_steps(steps)
    rewards_M = _rewards(inputs, steps) - inputs.penalty_M[steps.order_M]
    rewards_U = np.bincount(turn_of_M, rewards_M, len(turns.order_M))
    values_U = values_M[turns.order_M]
    # A turn without action tokens still lasts a turn.
    gap_U = turns.turns_until_next()
    deltas_U = rewards_U + inputs.gamma**gap_U * turns.next_of(values_U) - values_U
    decay_U: Floats = np.power(inputs.gamma * inputs.lambd, gap_U, dtype=np.float64)
    advantages_U = accumulate(deltas_U, decay_U, turns)
    return _result(inputs, steps, advantages_U[turn_of_M], values_U[turn_of_M])


def _values(inputs: AdvantageInputs, steps: Steps, estimator: str) -> Floats:
    if inputs.values_M is None:
        raise TrajectoryError(f"{estimator!r} needs values_M, a critic's estimate before each action token")
    check_succession(inputs, steps, estimator)
    return inputs.values_M[steps.order_M].astype(np.float64)


def _rewards(inputs: AdvantageInputs, steps: Steps) -> Floats:
    """Put each attempt's reward on its last step, or each turn's on the turn's last step.

    The reward of a turn without action tokens falls to the step before it; where there is none, nobody earned it.
    """
    rewards_M = np.zeros(len(steps.order_M))
    if not len(rewards_M):
        return rewards_M
    if inputs.credit == "outcome":
        rewards_M[steps.is_last_M] = inputs.rewards_A[steps.attempt_M[steps.is_last_M]]
        return rewards_M
    if inputs.credit != "turn" or inputs.turn_rewards_AT is None:
        raise TrajectoryError(f"GAE has credit 'outcome' or 'turn', got {inputs.credit!r}; gamma is its discount")
    num_turns = inputs.turn_rewards_AT.shape[1]
    attempts, turns = np.nonzero(np.where(inputs.is_valid_A[:, None], inputs.turn_rewards_AT, 0.0))
    code_M = steps.attempt_M * num_turns + steps.turn_M
    at = np.searchsorted(code_M, attempts * num_turns + turns, side="right") - 1
    is_earned = (at >= 0) & (steps.attempt_M[at] == attempts)
    np.add.at(rewards_M, at[is_earned], inputs.turn_rewards_AT[attempts, turns][is_earned])
    return rewards_M


def _result(inputs: AdvantageInputs, steps: Steps, advantages_M: Floats, values_M: Floats) -> Advantages:
    returns_M = advantages_M + values_M
    metrics: dict[str, float] = {}
    if len(returns_M):
        metrics = {"critic/value_mean": float(values_M.mean()), "critic/return_mean": float(returns_M.mean())}
        if (variance := returns_M.var()) > 0:
            metrics["critic/explained_variance"] = float(1 - advantages_M.var() / variance)
    whitened_M = whitened(advantages_M, inputs.no_std_norm)
    return Advantages(steps.scatter(whitened_M), metrics, steps.scatter(returns_M))
