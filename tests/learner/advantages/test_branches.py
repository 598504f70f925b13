"""Tree rollouts against independent attempts, in expectation: every group that can come up, with its probability."""

# N groups, A attempts of one, T turns, P parameters

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from turngym.learner.advantages import AdvantageInputs, estimate

# Turn 0: go one way, the other, or stop at once; turn 1, if there is one: two answers.
FIRST = np.array([0.5, 0.2, 0.3])
SECOND = np.array([[0.6, 0.4], [0.3, 0.7]])
STOP = 2
REWARDS = {(STOP,): 0.5, (0, 0): 1.0, (0, 1): 0.0, (1, 0): 0.25, (1, 1): 2.0}
EPISODES = list(REWARDS)
NUM_PARAMETERS = 3 + 4  # a softmax's logits each


def probability(episode) -> float:
    return float(FIRST[episode[0]] * (SECOND[episode] if len(episode) == 2 else 1.0))


def scores(episode) -> list[np.ndarray]:
    """The gradient of each turn's log-probability."""
    found = []
    for turn, action in enumerate(episode):
        gradient = np.zeros(NUM_PARAMETERS)
        start, chances = (0, FIRST) if turn == 0 else (3 + 2 * episode[0], SECOND[episode[0]])
        gradient[start : start + len(chances)] = -chances
        gradient[start + action] += 1.0
        found.append(gradient)
    return found


TRUE = sum(probability(e) * REWARDS[e] * np.sum(scores(e), axis=0) for e in EPISODES)


@dataclass(frozen=True)
class Groups:
    """Episodes of each possible group, how many share each attempt's turns, and how likely the group is."""

    episodes_NA: list[tuple]
    sharing_NAT: list[tuple]
    chances_N: np.ndarray


def independent(num: int) -> Groups:
    groups = list(product(EPISODES, repeat=num))
    return Groups(
        groups, [((1, 1),) * num] * len(groups), np.array([np.prod(list(map(probability, g))) for g in groups])
    )


def trees(*, num_trunks: int = 2, factor: int = 2, draws_anew: bool = False) -> Groups:
    """Groups of trunks that fork after turn 0; `draws_anew` has other episodes in place of those that stopped."""
    trunks = []
    for action in (0, 1):
        for ends in product((0, 1), repeat=factor):
            leaves = tuple((action, end) for end in ends)
            trunks.append((leaves, ((factor, 1),) * factor, FIRST[action] * np.prod(SECOND[action][list(ends)])))
    if draws_anew:
        for others in product(EPISODES, repeat=factor - 1):
            chance = FIRST[STOP] * np.prod(list(map(probability, others)))
            trunks.append((((STOP,), *others), ((1, 1),) * factor, chance))
    else:
        trunks.append((((STOP,),) * factor, ((factor, 1),) * factor, FIRST[STOP]))
    groups = list(product(trunks, repeat=num_trunks))
    return Groups(
        [sum((leaves for leaves, _, _ in group), ()) for group in groups],
        [sum((sharing for _, sharing, _ in group), ()) for group in groups],
        np.array([np.prod([chance for _, _, chance in group]) for group in groups]),
    )


def expected_gradient(groups: Groups, estimator: str, *, knows_sharing: bool = True, **options) -> np.ndarray:
    """Mean over groups of their mean gradient, as a batch that holds each possible group once."""
    attempts = [episode for group in groups.episodes_NA for episode in group]
    sharing = [shared for group in groups.sharing_NAT for shared in group]
    num = len(groups.episodes_NA[0])
    tokens = [(place, turn) for place, episode in enumerate(attempts) for turn in range(len(episode))]
    made = estimate(
        estimator,
        AdvantageInputs(
            rewards_A=np.array([REWARDS[episode] for episode in attempts]),
            is_valid_A=np.ones(len(attempts), bool),
            group_A=np.repeat(np.arange(len(groups.episodes_NA)), num),
            attempt_M=np.array([place for place, _ in tokens]),
            turn_M=np.array([turn for _, turn in tokens]),
            penalty_M=np.zeros(len(tokens)),
            sharing_M=np.array([sharing[place][turn] for place, turn in tokens]) if knows_sharing else None,
            **options,
        ),
    )
    gradients = np.array([scores(attempts[place])[turn] for place, turn in tokens])
    weights = np.array([groups.chances_N[place // num] / num for place, _ in tokens])
    return (made.advantages_M * weights) @ gradients


def test_every_group_is_counted():
    for groups in (independent(4), trees(), trees(draws_anew=True), trees(num_trunks=3), trees(factor=3)):
        assert groups.chances_N.sum() == pytest.approx(1.0)


def test_each_leaf_alone_is_a_sample_of_the_policy():
    groups = trees()
    for leaf in range(4):
        for episode in EPISODES:
            has = [group[leaf] == episode for group in groups.episodes_NA]
            assert groups.chances_N[has].sum() == pytest.approx(probability(episode))


def test_independent_attempts_have_the_known_expectation():
    np.testing.assert_allclose(expected_gradient(independent(4), "rloo"), TRUE, atol=1e-12)
    np.testing.assert_allclose(expected_gradient(independent(4), "dr_grpo"), 3 / 4 * TRUE, atol=1e-12)


@pytest.mark.parametrize("shape", [{}, {"num_trunks": 3}, {"factor": 3}])
def test_trees_have_the_same_expectation(shape):
    num = shape.get("num_trunks", 2) * shape.get("factor", 2)
    np.testing.assert_allclose(expected_gradient(trees(**shape), "rloo"), TRUE, atol=1e-12)
    np.testing.assert_allclose(expected_gradient(trees(**shape), "dr_grpo"), (num - 1) / num * TRUE, atol=1e-12)


def test_siblings_as_a_baseline_would_hold_back_what_they_share():
    """Of 4 leaves of 2 trunks the shared turn would be learned at (n - m) / (n - 1) = 2/3 of its rate."""
    found = expected_gradient(trees(), "rloo", knows_sharing=False)
    np.testing.assert_allclose(found[:3], 2 / 3 * TRUE[:3], atol=1e-12)
    np.testing.assert_allclose(found[3:], TRUE[3:], atol=1e-12)


def test_episodes_drawn_anew_for_those_that_stopped_would_make_stopping_rare():
    groups = trees(draws_anew=True)
    stops = [np.mean([episode == (STOP,) for episode in group]) for group in groups.episodes_NA]
    assert groups.chances_N @ stops == pytest.approx((0.3 + 0.3 * 0.3) / 2)  # where the policy stops 0.3 of the time
    found = expected_gradient(groups, "rloo")
    assert np.abs(found - TRUE).max() > 0.1 * np.abs(TRUE).max()


def test_dividing_by_a_deviation_leaves_little_of_a_difference():
    """The deviation of a group is not independent of its siblings, nor is it where attempts are independent."""
    tree, alone = expected_gradient(trees(), "group_norm"), expected_gradient(independent(4), "group_norm")
    cosine = tree @ alone / np.linalg.norm(tree) / np.linalg.norm(alone)
    assert cosine > 0.98


def test_what_all_share_is_not_learned_from():
    groups = trees(num_trunks=1, factor=4)
    found = expected_gradient(groups, "rloo")
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(found[3:], TRUE[3:], atol=1e-12)
