"""Baselines against hand-computed numbers, other libraries' formulas on full groups, and the faults of others."""

import dataclasses

import numpy as np
import pytest

from turngym.errors import TrajectoryError, UnknownNameError
from turngym.learner.advantages import (
    ESTIMATORS,
    NEEDS_GROUP,
    AdvantageInputs,
    estimate,
    group_statistics,
    penalty_to_go,
)


def inputs(rewards, groups, valid=None, tokens=None, **changes):
    """One action token per valid attempt unless `tokens` counts them."""
    is_valid = np.ones(len(rewards), bool) if valid is None else np.array(valid, bool)
    counts = is_valid.astype(int) if tokens is None else np.array(tokens)
    attempts = np.repeat(np.arange(len(rewards)), counts)
    made = AdvantageInputs(
        rewards_A=np.array(rewards, np.float64),
        is_valid_A=is_valid,
        group_A=np.array(groups),
        attempt_M=attempts,
        turn_M=np.zeros(len(attempts), int),
        penalty_M=np.zeros(len(attempts)),
        values_M=np.zeros(len(attempts)),
        policy_logprobs_M=np.zeros(len(attempts)),
        teacher_logprobs_M=np.zeros(len(attempts)),
    )
    return dataclasses.replace(made, **changes)


def advantages(name, *args, **kwargs):
    return estimate(name, inputs(*args, **kwargs)).advantages_M


# Numbers by hand: rewards (1, 2) have mean 1.5 and deviation sqrt(0.5) = 0.70711 with n - 1.


def test_a_group_that_is_not_full_is_not_cut_by_stride():
    """R33: (1, 2, 3) with groups of two gave (-1, 1, 300000) elsewhere."""
    result = estimate("group_norm", inputs([1, 2, 3], [0, 0, 1]))
    assert result.advantages_M.tolist() == pytest.approx([-0.70711, 0.70711, 0], abs=1e-5)
    assert result.advantages_M[2] == 0
    assert result.metrics["attempts/lone_survivors"] == 1
    assert result.metrics["attempts/without_signal"] == 1


def test_a_failed_attempt_does_not_shift_the_groups_behind_it():
    """R33: two prompts of four attempts, one of the first failed; the groups are interleaved on purpose."""
    rewards = [0, 1, np.nan, 3, 2, 5, 5, 1]
    groups = [7, 4, 7, 4, 7, 4, 7, 4]
    valid = [1, 1, 0, 1, 1, 1, 1, 1]
    # Group 7: 0, 2, 5: mean 7/3, deviation sqrt(19/3). Group 4: 1, 3, 5, 1: mean 2.5, sqrt(11/3).
    expected = [-0.92717, -0.78335, 0.26112, -0.13245, 1.30558, 1.05963, -0.78335]
    assert advantages("group_norm", rewards, groups, valid).tolist() == pytest.approx(expected, abs=1e-5)


def test_no_std_norm_only_subtracts_the_mean():
    result = advantages("group_norm", [1, 2, 6], [0, 0, 0], no_std_norm=True)
    assert result.tolist() == [-2, -1, 3]


@pytest.mark.parametrize("name", [*NEEDS_GROUP, "flash_reinforce"])
@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, np.float32(0.1), np.float32(0.7), 1 / 3, 1000.1, 1e300])
def test_equal_rewards_get_exactly_zero(name, reward):
    """In fp32, 0.7 eight times over gave up to 59.6 elsewhere."""
    assert (advantages(name, [reward] * 8, [0] * 8) == 0).all()
    assert (advantages(name, [reward], [0], tokens=[3]) == 0).all()


@pytest.mark.parametrize("count", range(1, 12))
def test_the_mean_of_equal_rewards_is_that_reward_to_the_last_bit(count):
    """So that an estimator may ask who lies above it; 0.1 three times over sums to 0.30000000000000004."""
    for reward in (0.1, 0.7, 1 / 3):
        assert (group_statistics(inputs([reward] * count, [0] * count)).mean_A == reward).all()


@pytest.mark.parametrize("name", NEEDS_GROUP)
def test_lone_survivors_get_exactly_zero_beside_groups_with_signal(name):
    result = advantages(name, [5, 1, 2, 4, 9, 9], [0, 1, 1, 1, 2, 2], tokens=[1, 5, 1, 1, 2, 2])
    assert result[0] == 0
    assert (result[-4:] == 0).all()
    assert (result[1:-4] != 0).all()


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_what_failed_is_absent_from_every_statistic(name):
    with_failures = advantages(
        name, [1, 1e9, 2, 4, np.nan, 3, 7], [0, 0, 0, 1, 1, 1, 2], [1, 0, 1, 1, 0, 1, 0], [2, 0, 1, 3, 0, 1, 0]
    )
    without = advantages(name, [1, 2, 4, 3], [0, 0, 1, 1], tokens=[2, 1, 3, 1])
    assert with_failures.tolist() == without.tolist()


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_order_of_attempts_does_not_matter(name):
    rng = np.random.default_rng(0)
    rewards, groups, order = rng.random(24), np.repeat(np.arange(6), 4), rng.permutation(24)
    assert advantages(name, rewards[order], groups[order]) == pytest.approx(advantages(name, rewards, groups)[order])


def test_dr_grpo_and_rloo_and_maxrl_by_hand():
    """Group (1, 2, 6): mean 3, means of the others 4, 3.5, 1.5. Group (0, 0): nothing succeeded."""
    rewards, groups = [1, 2, 6, 0, 0], [0, 0, 0, 1, 1]
    assert advantages("dr_grpo", rewards, groups).tolist() == [-2, -1, 3, 0, 0]
    assert advantages("rloo", rewards, groups).tolist() == [-3, -1.5, 4.5, 0, 0]
    assert advantages("maxrl", rewards, groups).tolist() == pytest.approx([-2 / 3, -1 / 3, 1, 0, 0])


def test_maxrl_is_the_mean_over_successes():
    """Of 8 attempts one succeeds: 7 for it, -1 for the others, whatever a success is worth."""
    for worth in (1.0, 0.3, 1e-300, 1e150):
        assert advantages("maxrl", [worth] + [0] * 7, [0] * 8).tolist() == pytest.approx([7] + [-1] * 7)


def test_maxrl_refuses_a_negative_reward_of_a_valid_attempt_only():
    with pytest.raises(TrajectoryError, match=r"-0\.5 of attempt 2; clip or shift"):
        advantages("maxrl", [1, 0, -0.5], [0, 0, 0])
    assert advantages("maxrl", [1, 0, -0.5], [0, 0, 0], [1, 1, 0]).tolist() == [1, -1]


def test_flash_reinforce_centres_over_the_batch_counting_each_attempt_once():
    """Mean of (1, 0, 5) is 2, of whatever length and task; the failed one enters nothing."""
    result = advantages("flash_reinforce", [1, 0, 77, 5], [0, 1, 1, 2], [1, 1, 0, 1], tokens=[3, 1, 0, 2])
    assert result.tolist() == [-1, -1, -1, -2, 3, 3]
    assert estimate("flash_reinforce", inputs([1, 3], [0, 1])).metrics["attempts/lone_survivors"] == 2


def test_reinforce_by_hand():
    """Tokens (1, 1, 3): mean 5/3, variance 8/9; one batch-wide mean, groups or not."""
    expected = np.array([-2 / 3, -2 / 3, 4 / 3]) / np.sqrt(8 / 9)
    assert advantages("reinforce", [1, 3], [0, 1], tokens=[2, 1]) == pytest.approx(expected)
    plain = advantages("reinforce", [1, 3], [0, 1], tokens=[2, 1], no_std_norm=True)
    assert plain == pytest.approx(expected * np.sqrt(8 / 9))


def test_reinforce_discounts_rewards_and_penalties_per_action_token():
    """Attempt 0: 8 on the last of three tokens, gamma 0.5: 2, 4, 8, less penalties to go 1, 2, 4 (1, 1, 4 apiece)."""
    made = inputs([8, 0], [0, 0], tokens=[3, 1], penalty_M=np.array([0.0, 0.0, 4.0, 0.0]), gamma=0.5, no_std_norm=True)
    raw = np.array([2 - 1, 4 - 2, 8 - 4, 0])
    assert estimate("reinforce", made).advantages_M == pytest.approx(raw - raw.mean())


def test_reinforce_equals_openrlhf_on_random_input():
    rng = np.random.default_rng(3)
    rewards, counts, gamma = rng.normal(size=10), rng.integers(1, 7, 10), 0.9
    penalties = [rng.random(count) * 0.1 for count in counts]
    raw = []
    for reward, penalty in zip(rewards, penalties, strict=True):
        step_rewards = -penalty
        step_rewards[-1] += reward
        to_go, returns = 0.0, []
        for step_reward in step_rewards[::-1]:
            to_go = step_reward + gamma * to_go
            returns.insert(0, to_go)
        raw += returns
    expected = (np.array(raw) - np.mean(raw)) / np.sqrt(max(np.var(raw), 1e-8))
    made = inputs(rewards, np.arange(10), tokens=counts, penalty_M=np.concatenate(penalties), gamma=gamma)
    assert estimate("reinforce", made).advantages_M == pytest.approx(expected, abs=1e-12)


def test_rloo_equals_trl_on_groups_with_holes():
    """TRL: (sum of the valid - own) / (valid - 1), with NaN for what failed."""
    rng = np.random.default_rng(4)
    rewards = rng.normal(size=(6, 4))
    rewards[rng.random((6, 4)) < 0.3] = np.nan
    valid = np.isfinite(rewards)
    count = valid.sum(1, keepdims=True)
    with np.errstate(all="ignore"):
        usual = rewards - (np.nansum(rewards, 1, keepdims=True) - rewards) / (count - 1)
    expected = np.where(count > 1, usual, 0.0)[valid]
    ours = advantages("rloo", rewards.ravel(), np.repeat(np.arange(6), 4), valid.ravel())
    assert ours == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["reinforce", "reinforce_baseline", "gae", "turn_gae"])
def test_whitening_equal_numbers_gives_exactly_zero(name):
    """The mean of six times 0.1 is not 0.1; over the least deviation, 1e-4, that was an advantage, and an update."""
    assert advantages(name, [0.1] * 6, [0, 0, 0, 1, 1, 1]).tolist() == [0.0] * 6


def test_whitening_one_token_gives_zero():
    for name in ("reinforce", "reinforce_baseline", "gae", "turn_gae"):
        assert advantages(name, [3.0], [0]).tolist() == [0]


def test_group_norm_equals_the_usual_formula_on_full_groups():
    rewards = np.random.default_rng(0).normal(size=(6, 4))
    usual = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-9)
    ours = advantages("group_norm", rewards.ravel(), np.repeat(np.arange(6), 4))
    assert ours == pytest.approx(usual.ravel(), abs=1e-12)


def test_reinforce_baseline_by_hand():
    """Baselined (-1, 1, -3, 3) with 1, 3, 2, 2 tokens: mean (-1 + 3 - 6 + 6) / 8 = 0.25, var 40 / 8 - 0.0625."""
    result = advantages("reinforce_baseline", [0, 2, 1, 7], [0, 0, 1, 1], tokens=[1, 3, 2, 2])
    values, scale = np.array([-1, 1, 1, 1, -3, -3, 3, 3]), 4.9375**-0.5
    assert result == pytest.approx((values - 0.25) * scale)
    plain = advantages("reinforce_baseline", [0, 2, 1, 7], [0, 0, 1, 1], tokens=[1, 3, 2, 2], no_std_norm=True)
    assert plain == pytest.approx(values - 0.25)


def test_reinforce_baseline_equals_openrlhf_on_full_groups():
    """Its formula in plain numpy: KL to go per token after the baseline, then whitening over action tokens."""
    rng = np.random.default_rng(1)
    rewards, counts = rng.normal(size=(5, 4)), rng.integers(1, 6, 20)
    penalties = [rng.random(count) * 0.1 for count in counts]
    baselined = (rewards - rewards.mean(1, keepdims=True)).ravel()
    returns = [reward - penalty[::-1].cumsum()[::-1] for reward, penalty in zip(baselined, penalties, strict=True)]
    returns = np.concatenate(returns)
    expected = (returns - returns.mean()) / np.sqrt(max(returns.var(), 1e-8))
    groups = np.repeat(np.arange(5), 4)
    ours = advantages("reinforce_baseline", rewards.ravel(), groups, tokens=counts, penalty_M=np.concatenate(penalties))
    assert ours == pytest.approx(expected, abs=1e-12)


def test_reinforce_baseline_centres_penalties_also_where_no_group_has_signal():
    """Penalties to go of (3, 1) and 2, mean 2, var 2 / 3: uncentred, every token sampled would be pushed down."""
    made = inputs([5, 5], [0, 0], tokens=[2, 1], penalty_M=np.array([2.0, 1.0, 2.0]))
    result = estimate("reinforce_baseline", made).advantages_M
    assert result.tolist() == pytest.approx([-(1.5**0.5), 1.5**0.5, 0.0])


def test_reinforce_baseline_keeps_the_batchs_rewards_off_groups_without_signal():
    """Rewards (0, 3) of 3 and 1 tokens become (-1.5, 1.5), mean -0.6 with the lone 0; penalties have mean 0.2."""
    penalties = np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    made = inputs([0, 3, 7], [0, 0, 1], tokens=[3, 1, 1], penalty_M=penalties, no_std_norm=True)
    # With signal: less their mean -0.6 - 0.2. Without: -1 less the penalties' mean alone, -0.2.
    expected = [-0.7, -0.7, -0.7, 2.3, -0.8]
    assert estimate("reinforce_baseline", made).advantages_M.tolist() == pytest.approx(expected)


def test_penalty_to_go_runs_over_turns_and_sequences_of_one_attempt():
    """Attempt 0 has turns 0, 2 in its first sequence and turn 1 in a branch laid behind; attempt 1 stands between."""
    made = inputs(
        [0, 0],
        [0, 0],
        tokens=[5, 2],
        attempt_M=np.array([0, 0, 0, 1, 1, 0, 0]),
        turn_M=np.array([0, 0, 2, 0, 1, 1, 1]),
        penalty_M=np.array([1.0, 2.0, 4.0, 100.0, 200.0, 8.0, 16.0]),
    )
    assert penalty_to_go(made).tolist() == [31, 30, 4, 300, 200, 28, 20]


def test_kl_acts_per_token_after_the_baseline_and_reaches_groups_without_signal():
    made = inputs([1, 2, 5], [0, 0, 1], tokens=[2, 1, 2], penalty_M=np.array([0.1, 0.2, 0.4, 0.01, 0.02]))
    expected = [-0.70711 - 0.3, -0.70711 - 0.2, 0.70711 - 0.4, -0.03, -0.02]
    assert estimate("group_norm", made).advantages_M.tolist() == pytest.approx(expected, abs=1e-5)


def test_metrics_by_hand():
    result = estimate("group_norm", inputs([1, 3, 5, 5, 9], [0, 0, 1, 1, 2], [1, 1, 1, 1, 0]))
    assert result.metrics == pytest.approx(
        {
            "attempts/valid": 4,
            "attempts/lone_survivors": 0,
            "attempts/without_signal": 2,
            "reward/mean": 3.5,
            "reward/std": np.sqrt(2.75),
            "reward/group_std": np.sqrt(2) / 2,
            "advantage/mean": 0,
            "advantage/std": 0.5,
            "advantage/abs_max": np.sqrt(0.5),
        },
        abs=1e-6,
    )


def test_group_statistics_of_an_all_failed_group():
    groups = group_statistics(inputs([1, 2], [0, 1], [0, 1]))
    assert groups.count_A.tolist() == [0, 1]
    assert groups.has_signal_A.tolist() == [False, False]


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_nothing_at_all(name):
    assert estimate(name, inputs([], [])).advantages_M.tolist() == []
    assert estimate(name, inputs([1, 2], [0, 0], [0, 0])).advantages_M.tolist() == []


def test_bad_input_is_named():
    with pytest.raises(TrajectoryError, match="reward nan of attempt 1 is not finite"):
        inputs([1, np.nan], [0, 0])
    with pytest.raises(TrajectoryError, match="not valid; leave its tokens out"):
        inputs([1, 2], [0, 0], [1, 0], tokens=[1, 1])
    with pytest.raises(TrajectoryError, match="one reward, validity and group"):
        inputs([1, 2], [0])
    with pytest.raises(UnknownNameError, match="Did you mean 'group_norm'"):
        advantages("groupnorm", [1], [0])


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in ("maxrl", "on_policy_distill")])
def test_rewards_too_large_are_an_error_and_never_zero(name):
    with pytest.raises(TrajectoryError, match="1e\\+308: clip it"):
        advantages(name, [1e308, 1e308, 1.0], [0, 0, 0])
    with pytest.raises(TrajectoryError, match="reward inf of attempt 0 is not finite"):
        advantages(name, [np.inf, 1.0], [0, 0])


def test_a_deviation_that_overflows_is_an_error():
    with pytest.raises(TrajectoryError, match="1e\\+300: clip it"):
        advantages("group_norm", [1e300, -1e300], [0, 0])


def test_advantages_that_a_batch_cannot_carry_are_an_error():
    """Batches are float32, where 1e39 is infinite."""
    assert advantages("dr_grpo", [1e38, -1e38], [0, 0]).tolist() == [1e38, -1e38]
    with pytest.raises(TrajectoryError, match="1e\\+39: clip it"):
        advantages("dr_grpo", [1e39, -1e39], [0, 0])


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_gamma_discounts_what_the_baseline_left_per_token(gamma):
    made = inputs([0, 2], [0, 0], tokens=[2, 3], gamma=gamma)
    expected = [-gamma, -1, gamma**2, gamma, 1]
    assert estimate("dr_grpo", made).advantages_M.tolist() == expected


def test_bad_fields_are_named():
    one = {"tokens": [1, 1]}
    for changes, message in (
        ({"values_M": np.zeros(3)}, r"values_M of shape \(2,\) wanted, got \(3,\)"),
        ({"values_M": np.array([0, np.nan])}, "values_M is nan at action token 1 \\(attempt 1, turn 0"),
        ({"policy_logprobs_M": np.array([0, -np.inf])}, "policy_logprobs_M is -inf at action token 1"),
        ({"teacher_logprobs_M": np.array([np.nan, 0])}, "teacher_logprobs_M is nan at action token 0"),
        ({"penalty_M": np.array([np.inf, 0])}, "penalty_M is inf"),
        ({"sequence_M": np.zeros(1, int)}, "sequence_M of shape"),
        ({"turn_M": np.array([0, -1])}, "count from 0, got -1"),
        ({"turn_rewards_AT": np.zeros((2, 0))}, r"turn_rewards_AT for 2 attempts and 1 turns wanted, got shape \(2, 0"),
        ({"states_AT": np.zeros((1, 1), int)}, "states_AT for 2 attempts"),
        (
            {"turn_rewards_AT": np.array([[1.0], [5.0]])},
            "turns of attempt 1 have rewards that sum to 5.0, its own is 2",
        ),
        ({"turn_rewards_AT": np.array([[np.nan], [2.0]])}, "a turn's reward of a valid attempt is not finite"),
        ({"gamma": 1.1}, "gamma between 0 and 1 wanted, got 1.1"),
        ({"lambd": np.nan}, "lambd between 0 and 1"),
        ({"turn_group_weight": np.inf}, "turn_group_weight must be a finite number"),
        ({"credit": "turns"}, "one of outcome, discounted, turn, turn_group; got 'turns'"),
        ({"credit": "turn"}, "'turn' needs turn_rewards_AT"),
        ({"credit": "turn_group", "turn_rewards_AT": np.array([[1.0], [2.0]])}, "needs states_AT"),
    ):
        with pytest.raises(TrajectoryError, match=message):
            inputs([1, 2], [0, 0], **one, **changes)
