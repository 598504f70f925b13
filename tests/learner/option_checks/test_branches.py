"""Options of tree rollouts: what cannot be is refused before anything is loaded, with what to do."""

import pytest

from turngym.config import parse_train
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError
from turngym.executors.episodes.branching import Branching
from turngym.learner.option_checks.branches import check_can_fork
from turngym.learner.option_checks.pairs import check_pairs, complaints
from turngym.learner.option_checks.ranges import check_ranges
from turngym.learner.run.from_settings import rollout_plan
from turngym.learner.run.inputs import check_inputs


def settings(words):
    return parse_train(words.split())


def check(given):
    check_ranges(given)
    check_pairs(given)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rollout.branch_at -1", r"--rollout\.branch_at must not be negative, got -1"),
        ("--rollout.branch_at 0 --rollout.branch_factor 1", r"--rollout\.branch_factor must be at least 2, got 1"),
        ("--rollout.branch_factor 3", r"--rollout\.branch_factor has no effect without --rollout\.branch_at"),
        ("--rollout.branch_at 2 1", r"--rollout\.branch_at 2 1: give each turn once, in order"),
        ("--rollout.branch_at 1 1", r"give each turn once"),
        ("--rollout.branch_at 4 --rollout.max_turns 4", r"--rollout\.max_turns 4 the last is 3.*give an earlier one"),
        ("--rollout.branch_at 3 --rollout.max_turns 4", r"the last is 3, and after it nothing goes on"),
        (
            "--rollout.branch_at 0 1 --rollout.n_samples_per_prompt 6",
            r"branch_factor 2 makes 4 attempts.*prompt 6 does",
        ),
        (
            "--rollout.branch_at 0 --rollout.branch_factor 3",
            r"makes 3 attempts.*--rollout\.n_samples_per_prompt 8 does",
        ),
    ],
)
def test_branches_that_cannot_be(words, message):
    with pytest.raises(ConfigError, match=message):
        check(settings(words))


def test_branches_that_can():
    given = settings("--agent env:PythonTool --rollout.branch_at 0 2 --rollout.max_turns 4")
    check(given)
    assert rollout_plan(given).branching == Branching((0, 2), 2)
    assert rollout_plan(settings("--agent env:PythonTool")).branching is None


def test_one_tree_for_all_attempts_is_doubtful_where_they_are_compared():
    words = "--rollout.branch_at 0 --rollout.n_samples_per_prompt 2"
    assert "all attempts at a task are leaves of one tree" in "".join(complaints(settings(words)))
    for other in ("--rollout.branch_at 0", words + " --algo.advantage.estimator reinforce"):
        assert not [said for said in complaints(settings(other)) if "branch" in said]


def test_the_environment_must_be_able_to_fork(tiny_model):
    given = settings(f"--agent env:Guess --actor.model_name_or_path {tiny_model} --rollout.branch_at 0")
    with pytest.raises(ConfigError, match=r"wants an environment that can fork, and 'Guess' \(Guess\) has no fork"):
        check_inputs(given)
    for name in ("PythonTool", "CodeSandbox"):
        check_can_fork(given, resolve(name, {}))
    check_can_fork(settings("--agent env:Guess"), resolve("Guess", {}))
