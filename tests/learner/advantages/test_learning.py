"""Every estimator, under every credit that it goes with, teaches a small policy whose best arms are known."""

import numpy as np
import pytest

from turngym.errors import ConfigError
from turngym.learner.advantages import CREDITS, ESTIMATORS, NEEDS_TEACHER, NEEDS_VALUES, AdvantageInputs, estimate
from turngym.learner.advantages import check_credit as check

# A attempts, T = 2 turns of one token each, K = 4 arms

NUM_TASKS, ATTEMPTS, BEST = 4, 8, (2, 0)
REWARDS_TK = np.array([[0.0, 0.3, 1.0, 0.3], [1.0, 0.0, 0.3, 0.3]])
TEACHER_TK = np.array([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]])


def goes_together(estimator, credit):
    try:
        check(estimator, credit, 1.0, 1.0)
    except ConfigError:
        return False
    return True


def chance_of_best(estimator, credit, gamma, lambd, steps=80, lr=0.4):
    """Train the logits of both turns and return how likely the best arms became."""
    rng = np.random.default_rng(0)
    logits_TK, values_T = np.zeros((2, 4)), np.zeros(2)
    num = NUM_TASKS * ATTEMPTS
    for _ in range(steps):
        probs_TK = np.exp(logits_TK) / np.exp(logits_TK).sum(axis=1, keepdims=True)
        arms_AT = np.stack([rng.choice(4, num, p=probs) for probs in probs_TK], axis=1)
        rewards_AT = REWARDS_TK[np.arange(2), arms_AT]
        is_valid_A = rng.random(num) > 0.1  # what failed has a tempting reward that must not be seen
        attempts, turns = np.nonzero(np.repeat(is_valid_A[:, None], 2, axis=1))
        arms = arms_AT[attempts, turns]
        made = AdvantageInputs(
            rewards_A=np.where(is_valid_A, rewards_AT.sum(axis=1), 100.0),
            is_valid_A=is_valid_A,
            group_A=np.repeat(np.arange(NUM_TASKS), ATTEMPTS),
            attempt_M=attempts,
            turn_M=turns,
            penalty_M=np.zeros(len(turns)),
            turn_rewards_AT=rewards_AT,
            states_AT=np.stack([np.zeros(num, int), 1 + arms_AT[:, 0]], axis=1),
            values_M=values_T[turns],
            policy_logprobs_M=np.log(probs_TK[turns, arms]),
            teacher_logprobs_M=np.log(TEACHER_TK[turns, arms]),
            gamma=gamma,
            lambd=lambd,
            credit=credit,
        )
        result = estimate(estimator, made)
        gradient_TK = np.zeros((2, 4))
        np.add.at(gradient_TK, (turns, arms), result.advantages_M)
        np.add.at(gradient_TK, turns, -result.advantages_M[:, None] * probs_TK[turns])
        logits_TK += lr * gradient_TK / is_valid_A.sum()
        if result.returns_M is not None:
            values_T += 0.5 * (np.array([result.returns_M[turns == t].mean() for t in (0, 1)]) - values_T)
    return probs_TK[np.arange(2), list(BEST)]


PAIRS = [(name, credit) for name in ESTIMATORS for credit in CREDITS if goes_together(name, credit)]


@pytest.mark.parametrize(("estimator", "credit"), PAIRS)
def test_it_learns_the_best_arm_of_both_turns(estimator, credit):
    gamma = 1.0 if estimator in NEEDS_TEACHER else 0.95
    chance_T = chance_of_best(estimator, credit, gamma, 0.9 if estimator in NEEDS_VALUES else 1.0)
    # The teacher itself says the best arm with 0.85, and the policy shall end there and not beyond.
    low, high = (0.75, 0.95) if estimator in NEEDS_TEACHER else (0.8, 1.0)
    assert (chance_T > low).all()
    assert (chance_T < high).all()
