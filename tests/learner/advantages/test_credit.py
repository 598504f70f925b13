"""Which reward a turn answers for: numbers by hand, a plain second implementation, and refused combinations."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from turngym.errors import ConfigError
from turngym.learner.advantages import (
    CREDITS,
    ESTIMATORS,
    NEEDS_GROUP,
    NEEDS_TEACHER,
    NEEDS_VALUES,
    AdvantageInputs,
    check_credit,
    estimate,
)

ALLOWED = [
    *[
        (name, credit)
        for name in (*NEEDS_GROUP, "reinforce", "flash_reinforce")
        for credit in ("outcome", "discounted")
    ],
    *[(name, credit) for name in NEEDS_GROUP if name != "maxrl" for credit in ("turn", "turn_group")],
    *[(name, credit) for name in NEEDS_VALUES for credit in ("outcome", "turn")],
    ("reinforce", "turn"),
    ("flash_reinforce", "turn"),
    ("on_policy_distill", "outcome"),
]


def inputs(turn_rewards, groups, tokens, credit, **changes):
    """Take rewards and numbers of tokens per turn, one list per attempt; an attempt without tokens failed."""
    num_turns = max(map(len, turn_rewards))
    rewards_AT = np.array([[*row, *[0.0] * (num_turns - len(row))] for row in turn_rewards], np.float64)
    pairs = [(a, t) for a, row in enumerate(tokens) for t, count in enumerate(row) for _ in range(count)]
    attempts, turns = np.array(pairs, int).reshape(-1, 2).T
    made = AdvantageInputs(
        rewards_A=rewards_AT.sum(axis=1),
        is_valid_A=np.array([sum(row) > 0 for row in tokens]),
        group_A=np.array(groups),
        attempt_M=attempts,
        turn_M=turns,
        penalty_M=np.zeros(len(attempts)),
        turn_rewards_AT=rewards_AT,
        states_AT=np.full(rewards_AT.shape, -1),
        credit=credit,
    )
    return dataclasses.replace(made, **changes)


def advantages(name, *args, **kwargs):
    return estimate(name, inputs(*args, **kwargs)).advantages_M.tolist()


def test_discounted_weighs_what_the_baseline_left_by_the_turns_to_the_end():
    """Rewards 0 and 4, mean 2: -2 and 2, times 0.5 per turn that follows, however long the turns."""
    rewards, tokens = [[0, 0], [0, 0, 4]], [[2, 1], [1, 3, 1]]
    result = advantages("dr_grpo", rewards, [0, 0], tokens, "discounted", gamma=0.5)
    assert result == [-1, -1, -2, 0.5, 1, 1, 1, 2]
    assert advantages("dr_grpo", rewards, [0, 0], tokens, "discounted") == [-2] * 3 + [2] * 5
    assert advantages("dr_grpo", [[4], [0, 4]], [0, 0], [[1], [1, 1]], "discounted", gamma=0.5) == [0, 0, 0]


def test_turn_compares_later_rewards_with_the_same_turn_of_siblings():
    """Returns with gamma 0.5: (1 + 2, 4), (0 + 1, 2), (5). Turn 0: mean 3; turn 1: mean 3."""
    rewards, tokens = [[1, 4], [0, 2], [5]], [[1, 2], [1, 1], [1]]
    assert advantages("dr_grpo", rewards, [0, 0, 0], tokens, "turn", gamma=0.5) == [0, 1, 1, -2, -1, 2]
    made = inputs(rewards, [0, 0, 0], tokens, "turn", gamma=0.5)
    assert estimate("dr_grpo", made).metrics["turns/compared"] == 5
    assert estimate("dr_grpo", made).metrics["turns/without_signal"] == 0


def test_turn_gives_a_turn_that_no_sibling_reached_exactly_zero():
    result = advantages("group_norm", [[0, 0, 7], [1], [9]], [0, 0, 1], [[1, 1, 1], [1], [1]], "turn")
    assert result[1:3] == [0, 0]
    assert result[4] == 0
    assert result[0] == pytest.approx(0.5**0.5) == -result[3]


def test_turn_group_adds_turns_from_the_same_state():
    """Episodes 3 and 1: mean 2, so 1 and -1. Both began in state 7 with returns 3 and 1.

    State 8 was met at turn 1 by the first (return 2) and at turn 2 by the second (return 1): 0.5 and -0.5. State 9
    is alone, and -1 is none. The turns count half.
    """
    states = np.array([[7, 8, -1], [7, 9, 8]])
    rewards, tokens = [[1, 2], [0, 0, 1]], [[1, 2], [1, 1, 1]]
    result = advantages("dr_grpo", rewards, [0, 0], tokens, "turn_group", states_AT=states, turn_group_weight=0.5)
    assert result == [1.5, 1.25, 1.25, -1.5, -1, -1.25]


def test_turn_group_discounts_turns_but_not_episodes():
    states = np.array([[7, 8], [7, 8]])
    rewards = [[0, 4], [0, 0]]
    result = advantages("dr_grpo", rewards, [0, 0], [[1, 1]] * 2, "turn_group", states_AT=states, gamma=0.5)
    assert result == [2 + 1, 2 + 2, -2 - 1, -2 - 2]


def test_the_same_state_number_in_another_group_is_another_state():
    states = np.array([[7], [7]])
    assert advantages("dr_grpo", [[1], [3]], [0, 1], [[1]] * 2, "turn_group", states_AT=states) == [0, 0]


def test_a_state_met_twice_by_one_attempt_counts_twice():
    """Returns 4 (turn 0), 4 (turn 1) and 1: mean 3 within the state."""
    states = np.array([[7, 7], [7, -1]])
    result = advantages("dr_grpo", [[0, 4], [1]], [0, 0], [[1, 1], [1]], "turn_group", states_AT=states)
    assert result == [1.5 + 1, 1.5 + 1, -1.5 - 2]


def test_penalties_are_discounted_per_turn_unless_the_credit_is_the_outcome():
    tokens, penalty = [[2, 1], [1]], np.array([1.0, 1.0, 4.0, 0.0])
    for credit, expected in (("discounted", [4, 3, 4, 0]), ("turn", [4, 3, 4, 0]), ("outcome", [2.5, 3, 4, 0])):
        result = advantages("dr_grpo", [[0, 0], [0]], [0, 0], tokens, credit, gamma=0.5, penalty_M=penalty)
        assert [-value for value in result] == expected


def test_reinforce_credits_by_hand():
    rewards, tokens = [[1, 4], [2]], [[2, 1], [1]]
    for credit, raw in (("discounted", [2.5, 2.5, 5, 2]), ("turn", [3, 3, 4, 2])):
        result = advantages("reinforce", rewards, [0, 1], tokens, credit, gamma=0.5, no_std_norm=True)
        assert result == pytest.approx(np.array(raw) - np.mean(raw))


def test_flash_reinforce_compares_a_turn_across_tasks():
    assert advantages("flash_reinforce", [[1, 4], [3]], [0, 1], [[1, 1], [1]], "turn") == [1, 0, -1]


def plain(name, made):
    """The group estimators in loops, for any credit."""
    tokens = list(zip(made.attempt_M, made.turn_M, strict=True))
    rewards, gamma = made.turn_rewards_AT, made.gamma
    valid = np.flatnonzero(made.is_valid_A)

    def against(scores, groups):
        members = defaultdict(list)
        for key, group in groups.items():
            members[group].append(scores[key])
        result = {}
        for key, group in groups.items():
            own, everyone = scores[key], members[group]
            if max(everyone) == min(everyone):
                result[key] = 0.0
            elif name == "rloo":
                result[key] = own - (sum(everyone) - own) / (len(everyone) - 1)
            elif name == "maxrl":
                result[key] = (own - np.mean(everyone)) / np.mean(everyone)
            elif name == "group_norm":
                result[key] = (own - np.mean(everyone)) / (np.std(everyone, ddof=1) + 1e-9)
            else:
                result[key] = own - np.mean(everyone)
        return result

    def to_go(attempt, turn):
        return sum(gamma ** (later - turn) * rewards[attempt, later] for later in range(turn, rewards.shape[1]))

    episodes = against({a: made.rewards_A[a] for a in valid}, {a: made.group_A[a] for a in valid})
    returns = {key: to_go(*key) for key in set(tokens)}
    last = {a: max((turn for b, turn in tokens if b == a), default=0) for a in valid}
    if made.credit == "turn":
        by_turn = against(returns, {(a, t): (made.group_A[a], t) for a, t in returns})
        scores = [by_turn[key] for key in tokens]
    elif made.credit == "turn_group":
        groups = {
            (a, t): (made.group_A[a], made.states_AT[a, t], (a, t) if made.states_AT[a, t] < 0 else None)
            for a, t in returns
        }
        by_state = against(returns, groups)
        scores = [episodes[a] + made.turn_group_weight * by_state[a, t] for a, t in tokens]
    elif made.credit == "discounted":
        scores = [episodes[a] * gamma ** (last[a] - t) for a, t in tokens]
    else:
        order = sorted(range(len(tokens)), key=lambda token: tokens[token])
        later = {token: sum(tokens[other][0] == tokens[token][0] for other in order[at + 1 :])
                 for at, token in enumerate(order)}  # fmt: skip
        scores = [episodes[a] * gamma ** later[i] for i, (a, _) in enumerate(tokens)]
    scores = np.array(scores)
    if name == "reinforce_baseline":
        return (scores - scores.mean()) / np.sqrt(max(scores.var(), 1e-8)), scores
    return scores, scores


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "credit"), [pair for pair in ALLOWED if pair[0] in NEEDS_GROUP])
def test_against_plain_loops_on_random_batches(name, credit, seed):
    """Failed attempts, groups without any, lone ones, mixed turns and lengths, rows in any order."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation([0, 0, 0, 0, 1, 1, 1, 2, 5, 5, 5])
    num_turns = rng.integers(1, 5, len(groups))
    rewards = [rng.integers(0, 3, n).astype(float).tolist() for n in num_turns]
    tokens = [rng.integers(1, 4, n).tolist() if group != 2 and rng.random() > 0.2 else [0] * n
              for n, group in zip(num_turns, groups, strict=True)]  # fmt: skip
    made = inputs(rewards, groups, tokens, credit, gamma=0.9, turn_group_weight=0.7)
    made = dataclasses.replace(made, states_AT=rng.integers(-1, 3, made.turn_rewards_AT.shape))
    shuffle = rng.permutation(len(made.attempt_M))
    made = dataclasses.replace(made, attempt_M=made.attempt_M[shuffle], turn_M=made.turn_M[shuffle])
    if credit == "outcome":  # positions within a turn are their order
        made = dataclasses.replace(made, attempt_M=np.sort(made.attempt_M), turn_M=np.zeros_like(made.turn_M))
    expected, raw = plain(name, made)
    ours = estimate(name, made).advantages_M
    if name == "reinforce_baseline":  # what had nobody to be compared with stays at 0
        expected = np.where((raw == 0) & (ours == 0), 0.0, expected)
    assert ours == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "credit"), ALLOWED)
def test_nothing_valid_gives_nothing(name, credit):
    for rewards, groups in (([[]], [0]), ([[1], [2]], [0, 0])):
        made = inputs(rewards, groups, [[0]] * len(groups), credit, gamma=0.9)
        nothing = np.zeros(0)
        made = dataclasses.replace(made, values_M=nothing, policy_logprobs_M=nothing, teacher_logprobs_M=nothing)
        result = estimate(name, made)
        assert result.advantages_M.tolist() == []
        assert all(np.isfinite(value) for value in result.metrics.values())


def test_needs_name_registered_estimators():
    assert {*NEEDS_GROUP, *NEEDS_VALUES, *NEEDS_TEACHER} <= set(ESTIMATORS)


@pytest.mark.parametrize(("estimator", "credit"), [*ALLOWED, ("mine.py:mine", "turn_group")])
def test_credits_that_go_together(estimator, credit):
    check_credit(
        estimator,
        credit,
        gamma=1.0 if estimator in NEEDS_TEACHER else 0.9,
        lambd=0.5 if estimator in (*NEEDS_VALUES, "mine.py:mine") else 1.0,
    )


@pytest.mark.parametrize(
    ("estimator", "credit", "gamma", "lambd", "message"),
    [
        (
            "gae",
            "discounted",
            1,
            1,
            "estimator gae does not go with --algo.advantage.credit discounted.*outcome or turn",
        ),
        ("turn_gae", "turn_group", 1, 1, "estimator turn_gae does not go with --algo.advantage.credit turn_group"),
        ("reinforce", "turn_group", 1, 1, "compares nothing within a group"),
        ("flash_reinforce", "turn_group", 1, 1, "across tasks"),
        ("maxrl", "turn", 1, 1, "share of a reward is no success; use outcome or discounted"),
        ("on_policy_distill", "turn", 1, 1, "learns from the teacher alone"),
        ("on_policy_distill", "outcome", 0.9, 1, "gamma 0.9 has no meaning with --algo.advantage.estimator on_policy"),
        ("group_norm", "outcome", 1, 0.95, "lambd 0.95 has no meaning with --algo.advantage.estimator group_norm"),
        ("gae", "outcome", 1.5, 1, "gamma must lie between 0 and 1, got 1.5"),
        ("gae", "outcome", 1, float("nan"), "lambd must lie between 0 and 1"),
        ("gae", "turns", 1, 1, "credit must be one of outcome, discounted, turn, turn_group; got 'turns'"),
    ],
)
def test_combinations_without_meaning_are_refused(estimator, credit, gamma, lambd, message):
    with pytest.raises(ConfigError, match=message):
        check_credit(estimator, credit, gamma, lambd)


def test_every_other_pair_of_ours_is_refused():
    for estimator in ESTIMATORS:
        for credit in CREDITS:
            if (estimator, credit) not in ALLOWED:
                with pytest.raises(ConfigError, match=f"estimator {estimator} .*credit {credit}"):
                    check_credit(estimator, credit, 1.0, 1.0)
