"""Policy losses by hand, and the same gradient however a step is split."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.kl import token_kl
from turngym.learner.losses import (
    LOSS_AGGREGATIONS,
    POLICY_LOSSES,
    PolicyInputs,
    PolicyOptions,
    aggregate,
    aggregation_weights,
    count_totals,
)
from turngym.learner.metrics import merge, values
from turngym.learner.packing import MicroBatching, distribute

MODES = list(LOSS_AGGREGATIONS)


def inputs(log_ratios, advantages, **changes):
    old = torch.full((len(log_ratios),), -2.0, dtype=torch.float64)
    made = PolicyInputs(
        logprobs_N=(old + torch.tensor(log_ratios, dtype=torch.float64)).requires_grad_(),
        old_logprobs_N=old,
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        is_weights_N=torch.ones(len(log_ratios), dtype=torch.float64),
        is_action_N=torch.ones(len(log_ratios), dtype=torch.bool),
        sequence_N=torch.zeros(len(log_ratios), dtype=torch.int64),
        num_sequences=1,
    )
    return dataclasses.replace(made, **changes)


def ppo(made, **options):
    return POLICY_LOSSES["ppo"](made, PolicyOptions(**options))


# Ratios 1.5, 1.5, 0.5, 0.5, 1.1 with clip range [0.8, 1.2]: only moves that the advantage rewards are clipped.
LOGS = [math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5), math.log(1.1)]
SIGNS = [2.0, -2.0, 2.0, -2.0, 2.0]


def test_ppo_by_hand():
    made = inputs(LOGS, SIGNS)
    result = ppo(made)
    assert result.loss_N.tolist() == pytest.approx([-2.4, 3.0, -1.0, 1.6, -2.2])
    result.loss_N.sum().backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([0, 3.0, -1.0, 0, -2.2])


def test_ppo_with_two_clip_ranges():
    loss = ppo(inputs(LOGS, SIGNS), eps_low=0.6, eps_high=0.05).loss_N
    assert loss.tolist() == pytest.approx([-2.1, 3.0, -1.0, 1.0, -2.1])


def test_dual_clip_bounds_the_loss_of_negative_advantages_only():
    made = inputs([math.log(5), math.log(5), math.log(2)], [-1.0, 1.0, -1.0])
    result = ppo(made, dual_clip=3.0)
    assert result.loss_N.tolist() == pytest.approx([3.0, -1.2, 2.0])
    result.loss_N.sum().backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([0, 0, 2.0])


def test_importance_weights_multiply_and_carry_no_gradient():
    weights = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    result = ppo(inputs([0.0, 0.0], [1.0, 1.0], is_weights_N=weights))
    assert result.loss_N.tolist() == [-2, 0]
    result.loss_N.sum().backward()
    assert weights.grad is None


def test_metrics_by_hand():
    metrics = values(ppo(inputs(LOGS, SIGNS)).metrics)
    expected = {
        "policy/clip_fraction": 2 / 5,
        "policy/ratio_mean": 5.1 / 5,
        "policy/ratio_max": 1.5,
        "policy/approx_kl": 0.02 - sum(LOGS) / 5,
    }
    assert metrics == pytest.approx(expected)


def test_masked_positions_enter_nothing_forward_or_backward():
    bad = torch.tensor([0.0, math.nan, -math.inf, math.inf], dtype=torch.float64)
    mask = torch.tensor([True, False, False, False])
    one = ppo(inputs([0.1], [1.5]))
    made = inputs([0.0] * 4, [1.5, math.nan, math.inf, 0.0], is_action_N=mask, is_weights_N=bad + 1)
    made = dataclasses.replace(made, logprobs_N=(bad - 1.9).requires_grad_(), old_logprobs_N=bad - 2.0)
    result = ppo(made, dual_clip=3.0)
    loss = aggregate(result.loss_N, torch.ones(4), mask)
    assert loss.item() == pytest.approx(one.loss_N.item())
    loss.backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([-1.5 * math.exp(0.1), 0, 0, 0])
    assert values(result.metrics) == pytest.approx(values(one.metrics))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("log_ratio", [300.0, -300.0])
def test_extreme_ratios_stay_finite(dtype, log_ratio):
    made = inputs([0.0] * 3, [1.0, -1.0, 0.0])
    policy = torch.full((3,), log_ratio, dtype=dtype, requires_grad=True)
    made = dataclasses.replace(made, logprobs_N=policy, old_logprobs_N=torch.zeros(3, dtype=dtype))
    result = ppo(made)
    result.loss_N.sum().backward()
    assert result.loss_N.isfinite().all()
    assert policy.grad.isfinite().all()
    assert result.loss_N[2] == 0
    assert all(math.isfinite(value) for value in values(result.metrics).values())


def test_an_empty_mask_gives_a_zero_that_carries_gradients():
    for made in (inputs([], []), inputs([0.5, 0.5], [1.0, 1.0], is_action_N=torch.zeros(2, dtype=torch.bool))):
        result = ppo(made)
        loss = aggregate(result.loss_N, torch.zeros_like(result.loss_N), made.is_action_N)
        assert loss.item() == 0
        loss.backward()
        assert (made.logprobs_N.grad == 0).all()
        assert values(result.metrics) == {}


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="dual_clip must be greater than 1"):
        PolicyOptions(dual_clip=1.0)
    with pytest.raises(ConfigError, match="eps_low"):
        PolicyOptions(eps_low=1.5)
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        POLICY_LOSSES["pppo"]


# Aggregation


def test_a_token_weighs_the_same_on_a_short_and_on_a_long_rank(make_batch):
    """R36: 10 tokens on one rank and 1000 on the other weigh 1/1010 each, not 0.05 and 0.0005."""
    batch = make_batch([[0] + [1] * 10, [0] + [1] * 1000])
    totals = count_totals(batch)
    for part in (batch.select([0]), batch.select([1])):
        weights = aggregation_weights("token-mean", part, totals)
        assert weights[part.is_action] == pytest.approx(1 / 1010)
        assert weights[0] == 0


def test_an_attempt_of_several_sequences_counts_once_in_sequence_means(make_batch):
    """Attempt 0 has 1 + 3 action tokens in two sequences, attempt 2 has 2, attempt 1 none: 1/(2 * 4) and 1/(2 * 2)."""
    batch = make_batch([[0, 1], [0, 1, 0, 1, 1], [0, 1, 1], [0, 0]], attempts=[0, 0, 2, 1])
    totals = count_totals(batch)
    assert (totals.num_actions, totals.num_attempts, totals.actions_per_attempt_A.tolist()) == (6, 2, [4, 0, 2])
    weights = aggregation_weights("seq-mean-token-mean", batch, totals)
    assert weights.tolist() == [0, 1 / 8, 0, 1 / 8, 0, 1 / 8, 1 / 8, 0, 1 / 4, 1 / 4, 0, 0]
    alone = aggregation_weights("seq-mean-token-mean", batch.select([1]), totals)
    assert alone.tolist() == [0, 1 / 8, 0, 1 / 8, 1 / 8]


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_a_step_sum_to_one(mode, make_batch):
    batch = make_batch([[0, 1, 1], [0, 0, 1], [0, 1, 1, 1, 1]], attempts=[5, 5, 3])
    assert aggregation_weights(mode, batch, count_totals(batch)).sum() == pytest.approx(1)
    empty = make_batch([[0, 0]])
    assert aggregation_weights(mode, empty, count_totals(empty)).tolist() == [0, 0]


@pytest.fixture
def step(make_batch):
    """Eight sequences of seven attempts, unequal in length."""
    rng = np.random.default_rng(3)
    masks = [[0, *rng.integers(0, 2, length), 1] for length in (1, 9, 4, 30, 2, 2, 17, 6)]
    return make_batch(masks, attempts=[0, 1, 2, 3, 3, 4, 5, 6])


def toy_gradient(parts, totals, mode):
    """Sum the loss of the parts of a step on a linear softmax model in fp64 and return its gradient."""
    torch.manual_seed(0)
    weight = torch.randn(50, 50, dtype=torch.float64, requires_grad=True)
    for part in parts:
        ids = torch.tensor(part.token_ids).long()
        logprobs = torch.zeros(part.num_tokens, dtype=torch.float64)
        if part.num_tokens:
            rows = weight[ids[:-1]].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
            logprobs = torch.cat([logprobs[:1], rows])
        is_action = torch.tensor(part.is_action)
        made = PolicyInputs(
            logprobs_N=logprobs,
            old_logprobs_N=torch.tensor(part.rollout_logprobs).double() - 3,  # NaN off actions
            advantages_N=torch.tensor(part.advantages).double(),
            is_weights_N=torch.ones(part.num_tokens, dtype=torch.float64),
            is_action_N=is_action,
            sequence_N=torch.tensor(part.sequence_of_token),
            num_sequences=part.num_sequences,
        )
        weights = torch.tensor(aggregation_weights(mode, part, totals))
        loss = aggregate(ppo(made).loss_N, weights, is_action)
        kl = token_kl("k3", logprobs, logprobs.detach() - 0.5, is_action)
        (loss + 0.1 * aggregate(kl, weights, is_action) + 0 * weight.sum()).backward()
    return weight.grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("micro", [1, 2, 8])
def test_the_gradient_does_not_depend_on_the_split(step, mode, world_size, micro):
    """R36: the same eight sequences as 1 x 8, 2 x 4 and 8 x 1 micro-batches, on one rank and on two."""
    totals = count_totals(step)
    whole = toy_gradient([step], totals, mode)
    size = step.num_sequences // micro
    groups = [list(range(start, start + size)) for start in range(0, 8, size)]
    ranks = [toy_gradient([step.select(g) for g in groups[rank::world_size]] or [step.select([])], totals, mode)
             for rank in range(world_size)]  # fmt: skip
    assert whole.abs().max() > 1e-3
    assert (sum(ranks) - whole).abs().max() < 1e-15


@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_does_not_depend_on_the_plan(step, mode):
    """Packed by tokens over three ranks, with empty micro-batches and an attempt cut in two."""
    totals = count_totals(step)
    plan = distribute(step.lengths, 3, MicroBatching(max_tokens=20))
    grads = [toy_gradient([step.select(micro) for micro in micros], totals, mode) for micros in plan]
    assert any(not micro for micros in plan for micro in micros)
    assert (sum(grads) - toy_gradient([step], totals, mode)).abs().max() < 1e-15


def test_metrics_do_not_depend_on_the_split():
    whole = ppo(inputs(LOGS, SIGNS)).metrics
    parts = [
        ppo(inputs(LOGS[:3], SIGNS[:3])).metrics,
        ppo(inputs([], [])).metrics,
        ppo(inputs(LOGS[3:], SIGNS[3:])).metrics,
    ]
    assert values(merge(parts)) == pytest.approx(values(whole))
