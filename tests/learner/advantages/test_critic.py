"""GAE with tokens and with turns as steps: by hand, against TRL, against plain loops, and what it refuses."""

import dataclasses
from itertools import groupby

import numpy as np
import pytest

from turngym.errors import TrajectoryError
from turngym.learner.advantages import AdvantageInputs, estimate

HAND = {"gamma": 0.5, "lambd": 0.5, "no_std_norm": True}


def inputs(rewards, attempts, turns, values, **changes):
    count = len(attempts)
    made = AdvantageInputs(
        rewards_A=np.array(rewards, np.float64),
        is_valid_A=np.isin(np.arange(len(rewards)), attempts),
        group_A=np.arange(len(rewards)),
        attempt_M=np.array(attempts, int),
        turn_M=np.array(turns, int),
        penalty_M=np.zeros(count),
        values_M=np.array(values, np.float64),
    )
    return dataclasses.replace(made, **changes)


def raw(name, made):
    """Advantages before whitening."""
    return estimate(name, made).returns_M - (made.values_M if name == "gae" else first_values(made))


def first_values(made):
    first = {}
    for token in np.lexsort((made.turn_M, made.attempt_M)):
        first.setdefault((made.attempt_M[token], made.turn_M[token]), made.values_M[token])
    return np.array([first[key] for key in zip(made.attempt_M, made.turn_M, strict=True)])


def test_gae_by_hand():
    """Values (1, 2, 4), reward 8 at the end, gamma = lambda = 0.5.

    Deltas: 0.5 * 2 - 1 = 0, 0.5 * 4 - 2 = 0, 8 - 4 = 4; advantages 4, 4 / 4 = 1, 1 / 4; returns add the values.
    """
    result = estimate("gae", inputs([8], [0, 0, 0], [0, 0, 0], [1, 2, 4], **HAND))
    assert result.returns_M.tolist() == [1.25, 3, 8]
    assert result.advantages_M.tolist() == pytest.approx(np.array([0.25, 1, 4]) - 1.75)
    assert result.metrics["critic/value_mean"] == pytest.approx(7 / 3)
    assert result.metrics["critic/explained_variance"] == pytest.approx(1 - np.var([0.25, 1, 4]) / np.var([1.25, 3, 8]))


def test_gae_is_whitened_over_action_tokens():
    made = inputs([8], [0, 0, 0], [0, 0, 0], [1, 2, 4], gamma=0.5, lambd=0.5)
    plain = np.array([0.25, 1, 4])
    assert estimate("gae", made).advantages_M == pytest.approx((plain - plain.mean()) / plain.std())


def test_gae_credit_turn_puts_each_reward_on_its_turns_last_token():
    """Two turns of two tokens, rewards 4 and 8, no values, gamma = lambda = 1: to go 12, 12, 8, 8."""
    made = inputs([12], [0] * 4, [0, 0, 1, 1], [0] * 4, credit="turn", turn_rewards_AT=np.array([[4.0, 8.0]]))
    assert estimate("gae", made).returns_M.tolist() == [12, 12, 8, 8]
    # gamma 0.5 acts per token: 8, then 4, then 4 + 2, then 3.
    made = dataclasses.replace(made, gamma=0.5)
    assert estimate("gae", made).returns_M.tolist() == [3, 6, 4, 8]
    # Under credit outcome the whole 12 stands at the end.
    made = dataclasses.replace(made, credit="outcome")
    assert estimate("gae", made).returns_M.tolist() == [1.5, 3, 6, 12]


def test_turn_gae_by_hand():
    """Turns of 2, 1 and 1 tokens begin at values 1, 2, 4; rewards 0, 2, 8; gamma = lambda = 0.5.

    Deltas: 0 + 0.5 * 2 - 1 = 0; 2 + 0.5 * 4 - 2 = 2; 8 - 4 = 4. Advantages 4; 2 + 4 / 4 = 3; 3 / 4.
    The value 99 inside a turn is looked at by nobody.
    """
    turns, values = [0, 0, 1, 2], [1, 99, 2, 4]
    made = inputs([10], [0] * 4, turns, values, credit="turn", turn_rewards_AT=np.array([[0.0, 2.0, 8.0]]), **HAND)
    assert estimate("turn_gae", made).returns_M.tolist() == [1.75, 1.75, 5, 8]
    assert raw("turn_gae", made).tolist() == [0.75, 0.75, 3, 4]
    # Under credit outcome 10 stands on the last turn: deltas 0, 0, 6.
    made = dataclasses.replace(made, credit="outcome")
    assert raw("turn_gae", made).tolist() == [0.375, 0.375, 1.5, 6]


def test_penalties_are_rewards_of_their_token_or_of_their_turn():
    made = inputs([8], [0] * 3, [0, 0, 1], [0] * 3, penalty_M=np.array([1.0, 2.0, 4.0]))
    assert raw("gae", made).tolist() == [1, 2, 4]
    assert raw("turn_gae", made).tolist() == [1, 1, 4]


def test_a_turn_without_tokens_gives_its_reward_to_the_step_before_and_lasts_a_turn():
    """Turn 1 sampled nothing. Its 4 falls to turn 0; for turn_gae the last turn lies two turns after the first."""
    rewards_AT = np.array([[0.0, 4.0, 8.0], [3.0, 0.0, 0.0]])
    made = inputs([12, 3], [0, 0, 1], [0, 2, 0], [0] * 3, credit="turn", turn_rewards_AT=rewards_AT)
    assert raw("gae", made).tolist() == [12, 8, 3]
    assert raw("turn_gae", dataclasses.replace(made, gamma=0.5)).tolist() == [4 + 8 / 4, 8, 3]


def test_what_came_before_an_attempts_first_token_is_nobodys():
    """Attempt 1 sampled nothing in turn 0: its 5 is no reward of attempt 0, whose steps stand before."""
    rewards_AT = np.array([[1.0, 0.0], [5.0, 2.0]])
    made = inputs([1, 7], [0, 1], [0, 1], [0, 0], credit="turn", turn_rewards_AT=rewards_AT)
    for name in ("gae", "turn_gae"):
        assert raw(name, made).tolist() == [1, 2]


def test_gae_follows_a_compacted_context_in_time():
    """The second sequence took over at turn 1 and stands first among the tokens."""
    made = inputs([8], [0] * 3, [1, 0, 0], [4, 1, 2], sequence_M=np.array([1, 0, 0]), **HAND)
    assert estimate("gae", made).returns_M.tolist() == [8, 1.25, 3]


@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_a_sequence_that_comes_back_is_refused(name):
    """In attempt 1, sequence 5 runs in turns 0 and 2 and sequence 6 between; attempt 0 is fine."""
    made = inputs([1, 1], [0, 1, 1, 1], [0, 0, 2, 1], [0] * 4, sequence_M=np.array([4, 5, 5, 6]))
    with pytest.raises(TrajectoryError, match=f"'{name}' .* attempt 1 sequence 5 comes back .* 'reinforce_baseline'"):
        estimate(name, made)
    assert len(estimate("reinforce_baseline", made).advantages_M) == 4


def test_sequences_may_be_numbered_within_each_attempt():
    """Attempt 0 ends in its sequence 1, attempt 1 begins in its own sequence 1, leaves it and comes back."""
    attempts, turns = [0, 0, 1, 1, 1], [0, 1, 0, 1, 2]
    made = inputs([1, 1], attempts, turns, [0] * 5, sequence_M=np.array([0, 1, 1, 0, 1]))
    with pytest.raises(TrajectoryError, match="attempt 1 sequence 1 comes back"):
        estimate("gae", made)
    fine = dataclasses.replace(made, sequence_M=np.array([0, 1, 1, 0, 0]))
    assert raw("gae", fine).tolist() == [1] * 5


@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_values_are_needed_and_other_credits_are_refused(name):
    made = inputs([1], [0], [0], [0])
    with pytest.raises(TrajectoryError, match="needs values_M"):
        estimate(name, dataclasses.replace(made, values_M=None))
    with pytest.raises(TrajectoryError, match="'outcome' or 'turn', got 'discounted'"):
        estimate(name, dataclasses.replace(made, credit="discounted"))


def test_gae_equals_the_compacted_sequence_in_trl_style_padding():
    """The padded loop of PPO (right padding, mask), on single-turn attempts of mixed length."""
    rng = np.random.default_rng(0)
    counts, gamma, lambd = rng.integers(1, 9, 7), 0.97, 0.9
    values, rewards = np.zeros((7, 8)), np.zeros((7, 8))
    for row, count in enumerate(counts):
        values[row, :count] = rng.normal(size=count)
        rewards[row, count - 1] = rng.normal()
    padded, last = np.zeros((7, 8)), np.zeros(7)
    for column in reversed(range(8)):
        after = values[:, column + 1] if column < 7 else 0.0
        last = rewards[:, column] + gamma * after - values[:, column] + gamma * lambd * last
        padded[:, column] = last
    mask = np.arange(8) < counts[:, None]
    attempts = np.repeat(np.arange(7), counts)
    made = inputs(rewards.sum(1), attempts, np.zeros(len(attempts)), values[mask], gamma=gamma, lambd=lambd)
    assert raw("gae", made) == pytest.approx(padded[mask], abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("credit", ["outcome", "turn"])
@pytest.mark.parametrize("name", ["gae", "turn_gae"])
def test_against_plain_loops_on_random_batches(name, credit, seed):
    """Mixed lengths, empty turns, failed attempts, tokens of several sequences in any order."""
    rng = np.random.default_rng(seed)
    num_attempts, num_turns, gamma, lambd = 8, 4, 0.9, 0.8
    lengths_AT = rng.integers(0, 4, (num_attempts, num_turns))
    lengths_AT[0] = 0  # failed, or sampled nothing
    lengths_AT[1:, 0] += 1
    blocks = [(a, t) for a in range(num_attempts) for t in range(num_turns) for _ in range(lengths_AT[a, t])]
    shuffled = [blocks[i] for i in rng.permutation(len(blocks))]
    attempts, turns = np.array(shuffled).T
    rewards_AT = rng.normal(size=(num_attempts, num_turns))
    values, penalties = rng.normal(size=len(turns)), rng.random(len(turns))
    made = inputs(
        rewards_AT.sum(1),
        attempts,
        turns,
        values,
        penalty_M=penalties,
        turn_rewards_AT=rewards_AT,
        credit=credit,
        gamma=gamma,
        lambd=lambd,
        sequence_M=attempts * 10 + turns // 2,
    )
    expected = np.zeros(len(turns))
    for attempt in range(1, num_attempts):
        tokens = sorted(np.flatnonzero(attempts == attempt), key=lambda token: turns[token])
        steps = [[t] for t in tokens] if name == "gae" else [list(g) for _, g in groupby(tokens, lambda t: turns[t])]
        advantage, after, after_turn = 0.0, 0.0, None
        for number, step in reversed(list(enumerate(steps))):
            turn = turns[step[0]]
            next_turn = turns[steps[number + 1][0]] if number + 1 < len(steps) else num_turns
            reward = -sum(penalties[token] for token in step)
            if credit == "outcome":
                reward += rewards_AT[attempt].sum() if number + 1 == len(steps) else 0.0
            else:
                reward += rewards_AT[attempt, turn:next_turn].sum()
            gap = 1 if name == "gae" or after_turn is None else after_turn - turn
            delta = reward + gamma**gap * after - values[step[0]]
            advantage = delta + (gamma * lambd) ** gap * advantage
            after, after_turn = values[step[0]], turn
            expected[step] = advantage
    assert raw(name, made) == pytest.approx(expected, abs=1e-10)
    assert estimate(name, made).advantages_M == pytest.approx((expected - expected.mean()) / expected.std())


def test_gae_with_lambda_and_gamma_1_is_reward_minus_value():
    made = inputs([5, 3], [0, 0, 1], [0, 1, 0], [1, 2, 4])
    assert raw("gae", made).tolist() == [4, 3, -1]
    assert raw("turn_gae", made).tolist() == [4, 3, -1]
