"""Policy losses by hand, at the ends of the number range, and with anything at masked positions."""

import dataclasses
import math

import pytest
import torch

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.losses.aggregations import aggregate
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyInputs, PolicyOptions
from turngym.learner.metrics import merge, values

LOSSES = list(POLICY_LOSSES)


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


def run(name, made, **options):
    return POLICY_LOSSES[name](made, PolicyOptions(**options))


def ppo(made, **options):
    return run("ppo", made, **options)


def gradient(name, made, **options):
    run(name, made, **options).loss_N.sum().backward()
    return made.logprobs_N.grad.tolist()


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


# Sequence 0 has ratios 2 and 0.5 (mean log-ratio 0), sequence 1 has 4 and 1 (ratio 2).
TWO_SEQUENCES = {"sequence_N": torch.tensor([0, 0, 1, 1]), "num_sequences": 2}
MIXED = [math.log(2), -math.log(2), math.log(4), 0.0]


def test_gspo_has_the_ratio_of_the_sequence():
    made = inputs(MIXED, [1.0, 1.0, -3.0, -3.0], **TWO_SEQUENCES)
    result = run("gspo", made)
    assert result.loss_N.tolist() == pytest.approx([-1, -1, 6, 6])
    result.loss_N.sum().backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([-1, -1, 6, 6])
    clipped = inputs(MIXED, [1.0, 1.0, 3.0, 3.0], **TWO_SEQUENCES)
    result = run("gspo", clipped)
    assert result.loss_N.tolist() == pytest.approx([-1, -1, -3.6, -3.6])
    result.loss_N.sum().backward()
    assert clipped.logprobs_N.grad.tolist() == pytest.approx([-1, -1, 0, 0])
    assert values(result.metrics) == pytest.approx(
        {
            "policy/clip_fraction": 0.5,
            "policy/ratio_mean": 1.5,
            "policy/ratio_max": 2.0,
            "policy/approx_kl": (7.5 - 4 - math.log(4)) / 4,
        }
    )


def test_gspo_is_the_gradient_through_the_ratio_for_one_advantage_per_sequence():
    made = inputs(MIXED, [0.7, 0.7, -0.4, -0.4], **TWO_SEQUENCES)
    ours = gradient("gspo", made)
    policy = made.logprobs_N.detach().requires_grad_()
    through = (policy - made.old_logprobs_N).reshape(2, 2).mean(1).exp()
    (-2 * (through * torch.tensor([0.7, -0.4]).double()).sum()).backward()  # two tokens a sequence
    assert ours == pytest.approx(policy.grad.tolist())


def test_gspo_lets_each_token_answer_for_its_own_advantage():
    """Sequence 1 has ratio 2: the token of advantage 0 gets no gradient, where the shared ratio would give both 1."""
    made = inputs(MIXED, [0.0, 0.0, 0.0, -1.0], **TWO_SEQUENCES)
    assert gradient("gspo", made) == pytest.approx([0, 0, 0, 2])


def test_cispo_clips_the_weight_and_keeps_the_gradient():
    """Ratios 1.5, 1.5, 0.5, 0.5, 1.1 become weights 1.2, 1.2, 0.8, 0.8, 1.1."""
    made = inputs(LOGS, SIGNS)
    result = run("cispo", made)
    policy = [-2 + log for log in LOGS]
    weights = [1.2, 1.2, 0.8, 0.8, 1.1]
    expected = [-w * a * p for w, a, p in zip(weights, SIGNS, policy, strict=True)]
    assert result.loss_N.tolist() == pytest.approx(expected)
    result.loss_N.sum().backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([-2.4, 2.4, -1.6, 1.6, -2.2])
    assert values(result.metrics)["policy/clip_fraction"] == pytest.approx(0.8)
    no_lower_bound = inputs(LOGS, SIGNS)
    assert gradient("cispo", no_lower_bound, eps_low=1.0) == pytest.approx([-2.4, 2.4, -1.0, 1.0, -2.2])


def test_sapo_by_hand():
    """At ratio 1 the gate is 2 / t with slope 1; at 1.5 and t = 2 it is 2 sigmoid(1) with slope 4 s (1 - s)."""
    made = inputs([0.0, 0.0, math.log(1.5)], [1.0, -1.0, 3.0])
    result = run("sapo", made, gate_positive=2.0, gate_negative=4.0)
    sigmoid = 1 / (1 + math.exp(-1))
    assert result.loss_N.tolist() == pytest.approx([-1, 0.5, -6 * sigmoid])
    result.loss_N.sum().backward()
    slope = 4 * sigmoid * (1 - sigmoid)
    assert made.logprobs_N.grad.tolist() == pytest.approx([-1, 1, -3 * 1.5 * slope])
    assert "policy/clip_fraction" not in result.metrics


@pytest.mark.parametrize("name", LOSSES)
def test_at_ratio_one_every_loss_has_the_policy_gradient(name):
    assert gradient(name, inputs([0.0] * 3, [1.0, -2.0, 0.0])) == pytest.approx([-1, 2, 0])


def test_importance_weights_multiply_and_carry_no_gradient():
    for name in LOSSES:
        weights = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
        plain = run(name, inputs([0.0, 0.0], [1.0, 1.0])).loss_N
        result = run(name, inputs([0.0, 0.0], [1.0, 1.0], is_weights_N=weights))
        assert result.loss_N.tolist() == pytest.approx([2 * plain[0].item(), 0])
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


@pytest.mark.parametrize("name", LOSSES)
def test_masked_positions_enter_nothing_forward_or_backward(name):
    bad = torch.tensor([0.0, math.nan, -math.inf, math.inf], dtype=torch.float64)
    mask = torch.tensor([True, False, False, False])
    one = inputs([0.1], [1.5])
    alone = run(name, one)
    alone.loss_N.sum().backward()
    made = inputs([0.0] * 4, [1.5, math.nan, math.inf, 0.0], is_action_N=mask, is_weights_N=bad + 1)
    made = dataclasses.replace(made, logprobs_N=(bad - 1.9).requires_grad_(), old_logprobs_N=bad - 2.0)
    result = run(name, made, dual_clip=3.0)
    loss = aggregate(result.loss_N, torch.ones(4), mask)
    assert loss.item() == pytest.approx(alone.loss_N.item())
    loss.backward()
    assert made.logprobs_N.grad.tolist() == pytest.approx([one.logprobs_N.grad.item(), 0, 0, 0])
    assert values(result.metrics) == pytest.approx(values(alone.metrics))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("log_ratio", [300.0, -300.0, -math.inf])
def test_extreme_ratios_stay_finite(name, dtype, log_ratio):
    """Without a correction, and with a weight of 0 as a rejected token has it."""
    made = inputs([0.0] * 6, [1.0, -1.0, 0.0] * 2)
    policy = torch.full((6,), log_ratio, dtype=dtype, requires_grad=True)
    weights = torch.tensor([1.0] * 3 + [0.0] * 3)
    made = dataclasses.replace(
        made, logprobs_N=policy, old_logprobs_N=torch.zeros(6, dtype=dtype), is_weights_N=weights
    )
    result = run(name, made)
    result.loss_N.sum().backward()
    assert result.loss_N.isfinite().all()
    assert policy.grad.isfinite().all()
    assert result.loss_N[2:].tolist() == [0] * 4
    assert all(math.isfinite(value) for value in values(result.metrics).values())


@pytest.mark.parametrize("name", LOSSES)
def test_one_wild_token_leaves_the_others_as_they_are(name):
    """Each token in a sequence of its own; gspo shares a ratio only within a sequence."""
    alone = {"sequence_N": torch.arange(3), "num_sequences": 3}
    calm = gradient(name, inputs([0.1, -0.1, 0.0], [1.0, -1.0, 0.5], **alone))
    wild = gradient(name, inputs([0.1, -0.1, 300.0], [1.0, -1.0, 0.5], **alone))
    assert wild[:2] == calm[:2]


@pytest.mark.parametrize("name", LOSSES)
def test_an_empty_mask_gives_a_zero_that_carries_gradients(name):
    for made in (inputs([], []), inputs([0.5, 0.5], [1.0, 1.0], is_action_N=torch.zeros(2, dtype=torch.bool))):
        result = run(name, made)
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
    with pytest.raises(ConfigError, match="sapo_temperatures must be positive"):
        PolicyOptions(gate_negative=0.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        POLICY_LOSSES["pppo"]


def test_metrics_do_not_depend_on_the_split():
    whole = ppo(inputs(LOGS, SIGNS)).metrics
    parts = [
        ppo(inputs(LOGS[:3], SIGNS[:3])).metrics,
        ppo(inputs([], [])).metrics,
        ppo(inputs(LOGS[3:], SIGNS[3:])).metrics,
    ]
    assert values(merge(parts)) == pytest.approx(values(whole))
