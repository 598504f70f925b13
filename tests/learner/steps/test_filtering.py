"""Dynamic filtering: which groups stay, by hand, and that groups do not touch each other."""

import numpy as np
import pytest

from turngym.envs.task import Task
from turngym.errors import ConfigError, TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.rollouts.buffer import Group
from turngym.learner.options import AlgoOptions
from turngym.learner.steps.filtering import check_filtering, filter_groups

FAILED = object()
ON = AlgoOptions(dynamic_filtering_enable=True)


def group(name: str, *scores: object, rewards: tuple[float, ...] | None = None) -> Group:
    """One attempt per score; FAILED for a failed one, None for one without a score."""
    task = Task(name)
    trajectories = []
    for place, score in enumerate(scores):
        is_failed = score is FAILED
        trajectories.append(
            Trajectory(
                task=task,
                attempt=place,
                sequences=(),
                messages=(),
                rewards_per_turn=np.array([0.0 if rewards is None else rewards[place]]),
                turn_ends=(TurnEnd.STOP,),
                end_reason=EndReason.FAILED if is_failed else EndReason.TERMINATED,
                failure=Failure(FailureKind.ENV, "broke", 0) if is_failed else None,
                score=None if is_failed else score,  # type: ignore[arg-type]
            )
        )
    return Group(task, tuple(trajectories))


def filtered(groups, options=ON, rewards=None, valid=None):
    trajectories = [t for g in groups for t in g.trajectories]
    rewards = [t.reward for t in trajectories] if rewards is None else rewards
    return filter_groups(groups, options, rewards, [t.is_valid for t in trajectories] if valid is None else valid)


def test_groups_whose_attempts_score_alike_are_left_out():
    groups = [group("a", 0.0, 1.0), group("b", 1.0, 1.0), group("c", 0.0, 0.0, 0.0), group("d", 0.2, 0.2000001)]
    result = filtered(groups)
    assert result.is_kept == (True, False, False, True)
    assert result.is_valid_A.tolist() == [True, True, False, False, False, False, False, True, True]
    assert result.metrics == {
        "groups/kept": 2,
        "groups/without_spread": 2,
        "groups/out_of_range": 0,
        "groups/without_valid": 0,
    }
    assert not result.is_empty


def test_equal_scores_are_equal_whatever_their_mean_rounds_to():
    assert filtered([group("a", *[0.1] * 7), group("b", *[1 / 3] * 3)]).is_kept == (False, False)


def test_a_score_of_zero_is_a_score_and_without_one_the_reward_counts():
    """Rewards differ in both groups; the scores of the first do not."""
    scored = group("a", 0.0, 0.0, rewards=(1.0, 2.0))
    unscored = group("b", None, None, rewards=(1.0, 2.0))
    assert filtered([scored, unscored]).is_kept == (False, True)
    assert filtered([unscored], rewards=[3.0, 3.0]).is_kept == (False,)  # the rewards given, not the environment's
    mixed = group("c", 0.5, None, rewards=(9.0, 0.5))
    assert filtered([mixed]).is_kept == (False,)


def test_only_valid_attempts_count():
    groups = [group("a", 0.0, 0.0, FAILED), group("b", 1.0, FAILED), group("c", FAILED, FAILED), group("d", 0, 1, 1)]
    result = filtered(groups)
    assert result.is_kept == (False, False, False, True)
    assert result.metrics["groups/without_spread"] == 2  # a lone survivor differs from nobody
    assert result.metrics["groups/without_valid"] == 1
    masked = filtered(groups, valid=[True] * 2 + [False] * 5 + [False, True, True])
    assert masked.is_kept == (False, False, False, False)
    assert masked.is_empty


def test_a_range_bounds_the_mean_strictly():
    options = AlgoOptions(dynamic_filtering_enable=True, dynamic_filtering_range=(0.25, 0.75))
    groups = [
        group("a", 0.0, 0.5),
        group("b", 0.0, 1.0),
        group("c", 0.5, 1.0),
        group("d", 0.5, 0.5),
        group("e", 0.0, 0.6),
    ]
    result = filtered(groups, options)
    assert result.is_kept == (False, True, False, False, True)
    assert result.metrics["groups/out_of_range"] == 2
    assert result.metrics["groups/without_spread"] == 1


def test_negative_rewards_pass_by_their_spread():
    assert filtered([group("a", -3.0, -1.0)]).is_kept == (True,)


def test_without_the_filter_everything_stays():
    result = filtered([group("a", 1.0, 1.0), group("b", FAILED, FAILED)], AlgoOptions())
    assert result.is_valid_A.tolist() == [True, True, False, False]
    assert result.is_kept == (True, False)
    assert result.metrics == {}
    assert filtered([], AlgoOptions()).is_empty


@pytest.mark.parametrize("seed", range(5))
def test_groups_do_not_touch_each_other(seed):
    rng = np.random.default_rng(seed)
    scores = [[FAILED if rng.random() < 0.3 else float(rng.integers(0, 3)) / 2 for _ in range(4)] for _ in range(12)]
    groups = [group(str(place), *row) for place, row in enumerate(scores)]
    options = AlgoOptions(dynamic_filtering_enable=True, dynamic_filtering_range=(0.2, 0.8))
    result = filtered(groups, options)
    order = rng.permutation(12)
    moved = filtered([groups[place] for place in order], options)
    assert moved.is_kept == tuple(result.is_kept[place] for place in order)
    assert moved.metrics == result.metrics
    assert result.is_kept == tuple(filtered([each], options).is_kept[0] for each in groups)
    known = [[s for s in row if s is not FAILED] for row in scores]
    assert result.is_kept == tuple(len(set(row)) > 1 and 0.2 < sum(row) / len(row) < 0.8 for row in known)
    shown = np.array([[s is not FAILED for s in row] for row in scores])
    assert np.array_equal(result.is_valid_A.reshape(12, 4), shown & np.array(result.is_kept)[:, None])


def test_bad_bounds_are_the_users_mistake():
    check_filtering(AlgoOptions(dynamic_filtering_enable=True, dynamic_filtering_range=(0.0, 1.0)))
    check_filtering(AlgoOptions())
    for bounds in ((1.0, 0.0), (0.5, 0.5), (float("nan"), 1.0)):
        with pytest.raises(ConfigError, match=r"--algo\.dynamic_filtering_range wants a lower and a higher"):
            check_filtering(AlgoOptions(dynamic_filtering_enable=True, dynamic_filtering_range=bounds))
    with pytest.raises(ConfigError, match=r"does nothing without --algo\.dynamic_filtering_enable"):
        check_filtering(AlgoOptions(dynamic_filtering_range=(0.0, 1.0)))


def test_one_reward_and_validity_per_attempt():
    with pytest.raises(TrajectoryError, match="each of 2 attempts wanted, got 1 and 2"):
        filtered([group("a", 1.0, 0.0)], rewards=[1.0])
