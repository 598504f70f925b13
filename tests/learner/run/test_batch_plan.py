"""Batch sizes that do not fit are refused with the options, the rule and what would work (R54)."""

import pytest

from turngym.errors import ConfigError
from turngym.executors.options import RolloutOptions
from turngym.learner.options import AdvantageOptions, TrainOptions
from turngym.learner.run.batch_plan import BatchPlan, plan_batches


def plan(batch_size=8, samples=8, train_batch=64, estimator="group_norm", world_size=1, **train) -> BatchPlan:
    return plan_batches(
        RolloutOptions(batch_size=batch_size, n_samples_per_prompt=samples),
        TrainOptions(batch_size=train_batch, **train),
        AdvantageOptions(estimator=estimator),
        world_size,
    )


def test_optimizer_steps_follow_from_the_sizes():
    assert plan(16, 8, 32) == BatchPlan(tasks_per_step=16, attempts_per_task=8, optimizer_steps=4)
    assert plan(16, 8, 32).attempts_per_step == 128


def test_fewer_attempts_than_one_batch_are_refused_by_name():
    with pytest.raises(ConfigError) as error:
        plan(batch_size=16, samples=8, train_batch=256)
    message = str(error.value)
    for part in ("--rollout.batch_size 16", "--rollout.n_samples_per_prompt 8", "128", "--train.batch_size 256"):
        assert part in message
    assert "128" in message.split("nearest")[1]


def test_sizes_that_do_not_divide_name_the_nearest():
    with pytest.raises(ConfigError, match="nearest values that work: 3, 4, 6"):
        plan(batch_size=6, samples=4, train_batch=5)


@pytest.mark.parametrize("estimator", ["group_norm", "reinforce_baseline"])
def test_one_attempt_cannot_be_compared(estimator):
    with pytest.raises(ConfigError, match=f"{estimator}.*at least 2, got 1"):
        plan(samples=1, train_batch=8, estimator=estimator)


def test_more_ranks_than_attempts_are_refused():
    with pytest.raises(ConfigError, match="smaller than the 7 learner ranks"):
        plan(batch_size=2, samples=2, train_batch=4, world_size=7)
