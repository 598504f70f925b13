"""pass@k by hand, against all subsets, and as the loop reports it."""

import itertools

import numpy as np
import pytest

from turngym.envs.task import Task
from turngym.errors import ConfigError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory
from turngym.executors.rollouts.buffer import Group
from turngym.learner.steps.evaluation import evaluate
from turngym.learner.steps.pass_at_k import Tries, mean_pass_at


def test_greedy_samples_of_164_problems():
    """R59: 50 of 164 solved at the only try are pass@1 0.305, and nothing is known of ten."""
    problems = [Tries(1, int(number < 50)) for number in range(164)]
    assert mean_pass_at(problems, 1) == pytest.approx(50 / 164)
    assert Tries(164, 50).pass_at(10) == pytest.approx(0.977, abs=5e-4)  # what pooling them would give
    with pytest.raises(ConfigError, match=r"pass@10 is not defined for a problem with 1 tries: .*n_samples_per_prompt"):
        mean_pass_at(problems, 10)


def test_four_samples_each_of_three_problems():
    """R59: 0, 1 and 4 of 4 solved; two of four are six pairs, of which three hold the one."""
    problems = [Tries(4, solved) for solved in (0, 1, 4)]
    assert [tries.pass_at(2) for tries in problems] == [0.0, 0.5, 1.0]
    assert mean_pass_at(problems, 2) == 0.5
    assert mean_pass_at(problems, 4) == pytest.approx(2 / 3)


@pytest.mark.parametrize(("tries", "solved"), [(5, 0), (5, 2), (6, 1), (6, 6)])
def test_it_is_the_share_of_subsets_that_hold_a_solution(tries, solved):
    for k in range(1, tries + 1):
        holds = [min(subset) < solved for subset in itertools.combinations(range(tries), k)]
        assert Tries(tries, solved).pass_at(k) == pytest.approx(np.mean(holds))


@pytest.mark.parametrize(("tries", "solved", "k"), [(4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_more_than_was_tried_is_refused(tries, solved, k):
    with pytest.raises(ConfigError, match=f"pass@{k} is not defined for a problem with {tries} tries"):
        Tries(tries, solved).pass_at(k)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="of 3 tries at one problem 4 cannot have solved it"):
        Tries(3, 4)
    with pytest.raises(ConfigError, match="at least one problem"):
        mean_pass_at([], 1)


class Played:
    """Rollouts that have the groups of some scores, by task; None is an attempt that failed."""

    def __init__(self, scores: list[list[float | None]]) -> None:
        self._scores = scores

    def run_all(self, tasks, numbers, sampling, should_stop, on_done, on_idle):
        return [
            Group(task, tuple(attempt(task, n, score) for n, score in zip(numbers, scores, strict=True)))
            for task, scores in zip(tasks, self._scores, strict=True)
        ]


def attempt(task: Task, number: int, score: float | None) -> Trajectory:
    if score is None:
        failure = Failure(FailureKind.ENV, "broken", 0)
        return Trajectory(task, number, (), (), np.empty(0), (), EndReason.FAILED, failure)
    return Trajectory(task, number, (), (), np.array([score]), (), EndReason.TERMINATED, score=score)


def evaluated(*scores: list[float | None], judge=None):
    tasks = [Task(id=str(number)) for number in range(len(scores))]
    return evaluate(Played(list(scores)), tasks, None, len(scores[0]), None, lambda: False, judge=judge)


def test_an_evaluation_reports_one_try_and_all_tries():
    result = evaluated([0.0] * 4, [0.5, 1.0, 0.2, 0.0], [1.0, 0.99, 1.0, 1.0])
    assert result.pass_at == {1: pytest.approx((0 + 1 / 4 + 1) / 3), 4: pytest.approx(2 / 3)}
    assert evaluated([1.0], [0.0]).pass_at == {1: 0.5}


def test_attempts_that_failed_are_no_tries():
    """Of the second task one of three solved; of all four attempts nothing is known there."""
    result = evaluated([0.0] * 4, [None, 1.0, 0.0, 0.0], [1.0] * 4, [None] * 4)
    assert result.pass_at == {1: pytest.approx((0 + 1 / 3 + 1) / 3), 4: pytest.approx(1 / 2)}


def test_scores_that_do_not_tell_what_is_solved_give_none():
    assert evaluated([3.0, -1.0], [0.0, 1.0]).pass_at == {}
    assert evaluated([1.0, 0.0], judge=lambda groups: np.zeros(2)).pass_at == {}
    assert evaluated([None, None]).pass_at == {}
