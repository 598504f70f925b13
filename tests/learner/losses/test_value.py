"""The critic's loss by hand, the same however a step is split."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from turngym.errors import ConfigError, TrajectoryError
from turngym.learner.losses.aggregations import count_totals
from turngym.learner.losses.value import ValueObjective
from turngym.learner.metrics import ExplainedVariance, Moments, merge, values


@pytest.fixture
def batch(make_batch):
    """Four action tokens with old values 0, 0, 1, 1 and returns 1, 1, 0, 0."""
    made = make_batch([[0, 1, 1], [0, 1, 0, 1]])
    return made.with_values([9, 0, 0, 9, 1, 9, 1]).with_returns([1, 1, 0, 0])


NEW = [math.nan, 0.25, 0.8, math.inf, 1.9, -math.inf, -0.5]
# Squared errors 0.5625, 0.04, 3.61, 0.25; held within 0.5: values 0.25, 0.5, 1.5, 0.5, errors 0.5625, 0.25, 2.25, 0.25.
LARGER = [0.5625, 0.25, 3.61, 0.25]


def test_by_hand(batch):
    policy = torch.tensor(NEW, requires_grad=True)
    loss, metrics = ValueObjective(0.5)(policy, batch, count_totals(batch))
    assert loss.item() == pytest.approx(sum(LARGER) / 8)
    loss.backward()
    # A held value has no gradient where it is the larger; at the last token both are equal and share it.
    assert policy.grad[[1, 2, 4]].tolist() == pytest.approx([-0.75 / 4, 0, 1.9 / 4])
    assert policy.grad[[0, 3, 5]].tolist() == [0, 0, 0]
    returns, new = np.array([1, 1, 0, 0]), np.array([0.25, 0.8, 1.9, -0.5])
    assert values(metrics) == pytest.approx(
        {
            "value/loss": sum(LARGER) / 8,
            "value/clip_fraction": 0.25,
            "value/mean": new.mean(),
            "value/return_mean": 0.5,
            "value/explained_variance": 1 - (returns - new).var() / returns.var(),
        }
    )


def test_without_clipping_it_is_half_the_squared_error(batch):
    policy = torch.tensor(NEW, requires_grad=True)
    loss, metrics = ValueObjective(None)(policy, replace(batch, values=None), count_totals(batch))
    assert loss.item() == pytest.approx((0.5625 + 0.04 + 3.61 + 0.25) / 8)
    loss.backward()
    assert policy.grad.tolist() == pytest.approx([0, -0.75 / 4, -0.2 / 4, 0, 1.9 / 4, 0, -0.5 / 4])
    assert values(metrics)["value/clip_fraction"] == 0


@pytest.mark.parametrize("clip", [0.3, None])
def test_the_split_changes_nothing(clip, make_batch):
    rng = np.random.default_rng(0)
    made = make_batch([[0, *rng.integers(0, 2, length), 1] for length in (1, 9, 4, 17)])
    made = made.with_values(rng.normal(size=made.num_tokens)).with_returns(5 + rng.normal(size=made.num_actions))
    objective, totals = pickle.loads(pickle.dumps(ValueObjective(clip))), count_totals(made)
    policy = torch.tensor(rng.normal(size=made.num_tokens), requires_grad=True)
    loss, metrics = objective(policy, made, totals)
    (whole,) = torch.autograd.grad(loss, policy)
    parts = []
    for chosen in ([1], [], [3, 0, 2]):
        tokens = np.concatenate([np.arange(made.starts[s], made.starts[s + 1]) for s in chosen] or [np.arange(0)])
        part, part_metrics = objective(policy[tokens], made.select(chosen), totals)
        part.backward()
        parts.append(part_metrics)
    assert torch.allclose(policy.grad, whole, atol=1e-12)
    assert values(merge(parts)) == pytest.approx(values(metrics))


def test_explained_variance_of_a_constant_and_far_from_zero():
    """Returns around a million: plain sums of squares would lose all of their variance of 2/3."""
    same = ExplainedVariance(Moments.of([0.1] * 7).merge(Moments.of([0.1] * 5)), Moments.of([1.0, 2.0]))
    assert same.value() is None
    far = [Moments.of([1e6 - 1]), Moments.of([1e6, 1e6 + 1])]
    assert far[0].merge(far[1]).deviations == pytest.approx(2)
    assert Moments.of([]).merge(far[0]) == far[0] == far[0].merge(Moments.of([]))
    assert ExplainedVariance(far[1], far[1]).value() == 0


def test_a_step_without_actions_is_a_zero_with_gradients(make_batch):
    empty = make_batch([[0, 0]]).with_values([0, 0]).with_returns([])
    policy = torch.tensor([math.nan, 1.0], requires_grad=True)
    loss, metrics = ValueObjective()(policy, empty, count_totals(empty))
    loss.backward()
    assert (loss.item(), policy.grad.tolist(), values(metrics)) == (0, [0, 0], {})


def test_what_is_missing_is_named(batch):
    with pytest.raises(TrajectoryError, match="needs returns"):
        ValueObjective()(torch.zeros(7), replace(batch, returns=None), count_totals(batch))
    with pytest.raises(TrajectoryError, match="needs values"):
        ValueObjective()(torch.zeros(7), replace(batch, values=None), count_totals(batch))
    with pytest.raises(ConfigError, match="value_clip must be positive"):
        ValueObjective(0.0)
