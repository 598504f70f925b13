"""KL estimates: by hand, against exact sums, and at the log-ratios that broke others."""

import math

import numpy as np
import pytest
import torch

from turngym.errors import UnknownNameError
from turngym.learner.losses.kl import KL_ESTIMATORS, kl_metrics, reward_kl, token_kl, unbiased_token_kl
from turngym.learner.metrics import values

ALL = torch.ones(10, dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("k1", [0.5, -1.0, 0.0]),
        ("k2", [0.125, 0.5, 0.0]),
        ("k3", [math.exp(-0.5) - 1 + 0.5, math.e - 1 - 1, 0.0]),  # 0.10653, 0.71828
    ],
)
def test_by_hand(name, expected):
    policy, reference = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -1.0, -3.0])
    assert token_kl(name, policy, reference, ALL[:3]).tolist() == pytest.approx(expected, abs=1e-6)


def test_k1_and_k3_are_unbiased_and_k2_has_the_right_gradient():
    """Summed over all tokens of a small vocabulary, weighted by the policy, instead of sampling."""
    torch.manual_seed(0)
    logits = torch.randn(10, dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(-1), torch.randn(10).double().log_softmax(-1)
    exact = (policy.exp() * (policy - reference)).sum()
    probs = policy.detach().exp()
    for name in ("k1", "k3"):
        assert (probs * token_kl(name, policy, reference, ALL)).sum().item() == pytest.approx(exact.item())
    (exact_grad,) = torch.autograd.grad(exact, logits, retain_graph=True)
    (k2_grad,) = torch.autograd.grad((probs * token_kl("k2", policy, reference, ALL)).sum(), logits)
    assert torch.allclose(k2_grad, exact_grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
@pytest.mark.parametrize("far", [100.0, -100.0])
def test_one_token_far_off_among_ten(name, dtype, far):
    """R37: reference - policy = 100; its exp overflows, and clipped afterwards the gradient is 0 * inf."""
    near = torch.linspace(-0.5, 0.5, 10).to(dtype)
    policy = torch.full((10,), -1.0, dtype=dtype, requires_grad=True)
    token_kl(name, policy, policy.detach() + near, ALL).sum().backward()
    normal = policy.grad.clone()
    policy.grad = None
    near[4] = far
    kl = token_kl(name, policy, policy.detach() + near, ALL)
    kl.sum().backward()
    assert kl.isfinite().all()
    assert policy.grad.isfinite().all()
    others = torch.arange(10) != 4
    assert torch.equal(policy.grad[others], normal[others])
    expected = {"k1": -far, "k2": far**2 / 2, "k3": math.exp(10) - 11 if far > 0 else 99.0}
    assert kl[4].item() == pytest.approx(expected[name], rel=0.01)

    optimizer = torch.optim.AdamW([policy], lr=0.1)
    optimizer.step()
    assert policy.isfinite().all()


def test_a_token_is_pulled_back_however_far_it_drifted():
    for name, reference, gradient in [("k1", -100.0, 1.0), ("k2", -100.0, 100.0), ("k3", 100.0, 1 - math.exp(10))]:
        policy = torch.tensor([0.0], requires_grad=True)
        token_kl(name, policy, torch.tensor([reference]), ALL[:1]).backward()
        assert policy.grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_masked_positions_enter_nothing(name):
    mask = torch.tensor([True, False, False, False])
    policy = torch.tensor([-1.0, math.nan, -math.inf, 5.0], requires_grad=True)
    reference = torch.tensor([-2.0, 0.0, math.nan, math.inf])
    kl = token_kl(name, policy, reference, mask)
    kl.sum().backward()
    assert kl[1:].tolist() == [0, 0, 0]
    assert policy.grad[1:].tolist() == [0, 0, 0]
    assert policy.grad[0] != 0
    assert values(kl_metrics(kl, mask)) == pytest.approx({"kl/reference": kl[0].item()})


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_impossible_tokens_stay_finite(name):
    policy = torch.tensor([-1.0, -math.inf, -math.inf], requires_grad=True)
    kl = token_kl(name, policy, torch.tensor([-math.inf, -1.0, -math.inf]), ALL[:3])
    kl.sum().backward()
    assert kl.isfinite().all()
    assert policy.grad.isfinite().all()
    assert kl[2] == 0


def test_kl_in_the_reward_is_capped_at_ten():
    policy, reference = np.float32([-1, -1, -1, -1]), np.float32([-1.5, -101, 99, -1])
    assert reward_kl("k1", policy, reference).tolist() == [0.5, 10, -10, 0]
    assert reward_kl("k2", policy, reference).tolist() == [0.125, 10, 10, 0]
    assert reward_kl("k3", policy, reference).tolist() == pytest.approx([0.10653, 10, 10, 0], abs=1e-5)


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_the_unbiased_gradient_is_that_of_the_true_kl(name):
    """Summed over all tokens of a small vocabulary, weighted by the old policy that they would be sampled from."""
    torch.manual_seed(0)
    logits = torch.randn(10, dtype=torch.float64, requires_grad=True)
    policy, reference, old = logits.log_softmax(-1), *(torch.randn(10).double().log_softmax(-1) for _ in range(2))
    (exact,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    kl = (old.exp() * unbiased_token_kl(name, policy, reference, old, ALL)).sum()
    (ours,) = torch.autograd.grad(kl, logits, retain_graph=True)
    assert (policy - old).exp().max() < 10  # no weight is bounded
    assert torch.allclose(ours, exact)
    true_kl = (policy.exp() * (policy - reference)).sum()
    assert (kl.item() == pytest.approx(true_kl.item())) is (name != "k2")
    (plain,) = torch.autograd.grad((old.exp() * token_kl(name, policy, reference, ALL)).sum(), logits)
    assert not torch.allclose(plain, exact, atol=0.01)


@pytest.mark.parametrize("log_ratio", [1e-4, -1e-3, 0.01, -0.5, 5.0])
def test_the_slope_of_k3_keeps_its_digits_in_float32(log_ratio):
    """1 - e^-l of l = log(policy / reference): what holds a drifted token back must not round into a near one."""
    policy = torch.zeros(1, requires_grad=True)
    token_kl("k3", policy, torch.tensor([-log_ratio]), ALL[:1]).sum().backward()
    assert policy.grad.item() == pytest.approx(-math.expm1(-log_ratio), rel=1e-5, abs=1e-7)


def test_the_unbiased_gradient_of_k3_is_that_of_the_weighed_k3():
    """w k3 with gradient through w, as DeepSeek-V3.2 and TRL have it: value and slope by hand at w = 2, l = 0.5."""
    policy = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    old, reference = policy.detach() - math.log(2), policy.detach() - 0.5
    kl = unbiased_token_kl("k3", policy, reference, old, ALL[:1])
    assert kl.item() == pytest.approx(2 * (math.exp(-0.5) - 1 + 0.5))
    kl.sum().backward()
    ours = policy.grad.clone()
    assert ours.item() == pytest.approx(2 * 0.5)
    policy.grad = None
    ((policy - old).exp() * token_kl("k3", policy, reference, ALL[:1])).sum().backward()
    assert torch.allclose(policy.grad, ours)


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_the_unbiased_gradient_at_the_ends_of_the_range(name):
    """Weights are bounded at 10; -inf and masked NaN leave nothing behind."""
    policy = torch.tensor([0.0, -300.0, -math.inf, math.nan], requires_grad=True)
    reference, old = torch.tensor([-1.0, 0.0, -1.0, math.nan]), torch.tensor([-300.0, 0.0, -1.0, math.nan])
    mask = torch.tensor([True, True, True, False])
    kl = unbiased_token_kl(name, policy, reference, old, mask)
    kl.sum().backward()
    assert kl.isfinite().all()
    assert policy.grad.isfinite().all()
    assert policy.grad.tolist() == pytest.approx([10, 0, 0, 0], abs=1e-5)


def test_unknown_estimators_are_refused():
    with pytest.raises(UnknownNameError, match="KL estimator 'k4'"):
        token_kl("k4", torch.zeros(1), torch.zeros(1), ALL[:1])
