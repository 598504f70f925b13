"""Schedules give transformers' numbers at every step of a run."""

import pytest
import torch
from transformers import get_scheduler

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.schedule import Schedule, num_warmup_steps


@pytest.mark.parametrize("name", ["cosine_with_min_lr", "constant_with_warmup", "linear"])
@pytest.mark.parametrize(("steps", "warmup"), [(20, 3), (20, 0), (7, 6), (1, 0)])
def test_equals_transformers(name, steps, warmup):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    options = {"min_lr_rate": 0.1} if name == "cosine_with_min_lr" else {}
    theirs = get_scheduler(name, optimizer, warmup, steps, scheduler_specific_kwargs=options)
    ours = Schedule(name, steps, warmup, min_ratio=0.1)
    for step in range(steps + 1):
        assert ours.factor(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), step
        optimizer.step()
        theirs.step()


def test_by_hand():
    cosine = Schedule("cosine_with_min_lr", num_steps=10, num_warmup_steps=2, min_ratio=0.1)
    assert [cosine.factor(step) for step in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])


def test_past_the_end_the_last_value_holds():
    assert Schedule("cosine_with_min_lr", 10, min_ratio=0.1).factor(15) == pytest.approx(0.1)
    assert Schedule("linear", 10).factor(15) == 0


def test_warmup_is_rounded_up():
    assert [num_warmup_steps(100, 0.03), num_warmup_steps(10, 0.03), num_warmup_steps(10, 0.0)] == [3, 1, 0]


def test_bad_values_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'linear'"):
        Schedule("liner", 10)
    with pytest.raises(ConfigError, match=r"\[0, 1\]"):
        Schedule("linear", 10, min_ratio=2)
    with pytest.raises(ConfigError, match="negative"):
        Schedule("linear", 10, -1)
