"""Schedules give transformers' numbers at every step of a run."""

import math
import pickle
import subprocess
import sys

import pytest
import torch
from transformers import SchedulerType, get_scheduler

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.ranks.schedule import OBSERVERS, SCHEDULES, Schedule, num_warmup_steps


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("steps", "warmup"), [(20, 3), (20, 0), (7, 6), (1, 0)])
def test_equals_transformers(name, steps, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {} if SCHEDULES[name] is None else {SCHEDULES[name]: 0.1}
    if name == "warmup_stable_decay":
        options["num_decay_steps"] = math.ceil(steps / 10)
    theirs = get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)
    ours = Schedule(name, steps, warmup, min_ratio=0.1)
    for step in range(steps + 1):
        assert ours.factor(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), step
        optimizer.step()
        theirs.step()


def test_every_scheduler_of_transformers_is_taken_or_refused():
    assert {kind.value for kind in SchedulerType} == {*SCHEDULES, *OBSERVERS}


def test_by_hand():
    cosine = Schedule("cosine_with_min_lr", num_steps=10, num_warmup_steps=2, min_ratio=0.1)
    assert [cosine.factor(step) for step in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])
    stable = Schedule("warmup_stable_decay", num_steps=40, num_warmup_steps=4, min_ratio=0.2)
    assert [stable.factor(step) for step in (2, 4, 35, 36, 38, 40)] == pytest.approx([0.6, 1, 1, 1, 0.6, 0.2])
    line = Schedule("polynomial", num_steps=12, num_warmup_steps=2, min_ratio=0.5)
    assert [line.factor(step) for step in (1, 2, 7, 12)] == pytest.approx([0.5, 1, 0.75, 0.5])
    root = Schedule("inverse_sqrt", num_steps=100, num_warmup_steps=4)
    assert [root.factor(step) for step in (2, 4, 16, 100)] == pytest.approx([0.5, 1, 0.5, 0.2])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_of_nothing_but_warmup_and_none_at_all(name):
    warming = Schedule(name, num_steps=4, num_warmup_steps=4, min_ratio=0.1)
    at_its_end = 0.1 if name == "cosine_warmup_with_min_lr" else 1  # which is a step ahead of the others
    assert warming.factor(4) == pytest.approx(at_its_end)
    assert math.isfinite(Schedule(name, num_steps=0).factor(0))


def test_past_the_end_the_last_value_holds():
    assert Schedule("cosine_with_min_lr", 10, min_ratio=0.1).factor(15) == pytest.approx(0.1)
    assert Schedule("linear", 10).factor(15) == 0


def test_warmup_is_rounded_up():
    assert [num_warmup_steps(100, 0.03), num_warmup_steps(10, 0.03), num_warmup_steps(10, 0.0)] == [3, 1, 0]


def test_a_schedule_travels_after_use():
    schedule = Schedule("cosine", 10, 2)
    schedule.factor(3)
    assert pickle.loads(pickle.dumps(schedule)).factor(3) == schedule.factor(3)


def test_checking_a_name_loads_no_torch():
    program = (
        "import sys; from turngym.learner.ranks.schedule import Schedule; Schedule('cosine', 10); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_bad_values_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'linear'"):
        Schedule("liner", 10)
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        Schedule("linear", 10, min_ratio=2)
    with pytest.raises(ConfigError, match="negative"):
        Schedule("linear", 10, -1)
    with pytest.raises(ConfigError, match="falls nowhere"):
        Schedule("polynomial", 10, min_ratio=1)


@pytest.mark.parametrize("name", OBSERVERS)
def test_schedules_that_follow_a_metric_are_refused(name):
    with pytest.raises(ConfigError, match="follows a metric"):
        Schedule(name, 10)
