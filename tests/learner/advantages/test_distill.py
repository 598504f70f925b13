"""Advantages from a teacher: by hand, bounded, and deaf to rewards."""

import dataclasses

import numpy as np
import pytest

from turngym.errors import TrajectoryError
from turngym.learner.advantages import AdvantageInputs, estimate

MADE = AdvantageInputs(
    rewards_A=np.array([5.0, 0.0]),
    is_valid_A=np.array([True, True]),
    group_A=np.array([0, 1]),
    attempt_M=np.array([0, 0, 1, 1]),
    turn_M=np.array([0, 0, 0, 0]),
    penalty_M=np.array([0.0, 0.5, 0.0, 0.0]),
    policy_logprobs_M=np.array([-1.0, -2.0, -0.5, -30.0]),
    teacher_logprobs_M=np.array([-3.0, -0.5, -np.inf, -1.0]),
)


def test_by_hand():
    """-3 + 1; -0.5 + 2 less the token's own penalty; never said: -10; 29 times likelier in logs: 10."""
    result = estimate("on_policy_distill", MADE)
    assert result.advantages_M.tolist() == [-2, 1, -10, 10]
    assert result.metrics["distill/reverse_kl"] == pytest.approx((2 - 1.5 + 10 - 10) / 4)
    assert result.metrics["distill/bounded"] == 0.5
    assert result.metrics["reward/mean"] == 2.5
    assert result.returns_M is None


def test_rewards_and_siblings_change_nothing():
    changed = dataclasses.replace(MADE, rewards_A=np.array([0.0, 9.0]), group_A=np.array([3, 3]))
    assert estimate("on_policy_distill", changed).advantages_M.tolist() == [-2, 1, -10, 10]


def test_the_mean_over_samples_of_the_policy_is_minus_the_reverse_kl():
    policy, teacher = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    tokens = np.repeat([0, 1, 2], [5, 3, 2])  # as often as the policy says them
    zeros = np.zeros(10, int)
    made = AdvantageInputs(
        np.zeros(1),
        np.ones(1, bool),
        np.zeros(1, int),
        zeros,
        zeros,
        np.zeros(10),
        policy_logprobs_M=np.log(policy)[tokens],
        teacher_logprobs_M=np.log(teacher)[tokens],
    )
    kl = (policy * np.log(policy / teacher)).sum()
    assert estimate("on_policy_distill", made).metrics["distill/reverse_kl"] == pytest.approx(kl)


@pytest.mark.parametrize("name", ["teacher_logprobs_M", "policy_logprobs_M"])
def test_both_logprobs_are_needed(name):
    with pytest.raises(TrajectoryError, match=f"'on_policy_distill' needs {name}"):
        estimate("on_policy_distill", dataclasses.replace(MADE, **{name: None}))
