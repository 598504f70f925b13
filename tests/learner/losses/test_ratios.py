"""Log-ratios between policies: widened, masked, and bounded only when they become ratios."""

import math

import pytest
import torch

from turngym.learner.losses.ratios import LOG_RATIO_BOUND, LOWEST_LOGPROB, bounded_logprobs, log_ratio, ratio, widened

ALL = torch.ones(3, dtype=torch.bool)


def test_half_precision_is_widened_before_the_difference():
    """In bf16, -1.0 and -1.01 differ by 0.0078 or 0.0156; widened they keep what bf16 had of each."""
    new, old = torch.tensor([-1.0], dtype=torch.bfloat16), torch.tensor([-1.01])
    assert log_ratio(new, old, ALL[:1]).tolist() == pytest.approx([0.01], abs=1e-6)
    assert widened(torch.zeros(1, dtype=torch.float16)).dtype == torch.float32
    assert widened(torch.zeros(1, dtype=torch.float64)).dtype == torch.float64


def test_the_log_ratio_is_not_bounded_and_the_ratio_is():
    far = log_ratio(torch.tensor([0.0, -50.0, -1.0]), torch.tensor([-50.0, 0.0, -1.0]), ALL)
    assert far.tolist() == [50, -50, 0]
    assert ratio(far).tolist() == pytest.approx([math.exp(LOG_RATIO_BOUND), math.exp(-LOG_RATIO_BOUND), 1.0])


def test_masked_positions_are_zero_whatever_stands_there():
    new = torch.tensor([-1.0, math.nan, math.inf], requires_grad=True)
    result = log_ratio(new, torch.tensor([-1.5, -1.0, math.nan]), torch.tensor([True, False, False]))
    assert result.tolist() == [0.5, 0, 0]
    result.sum().backward()
    assert new.grad.tolist() == [1, 0, 0]


def test_impossible_tokens_have_a_finite_logprob_without_gradient():
    new = torch.tensor([-1.0, -math.inf, math.nan], requires_grad=True)
    result = bounded_logprobs(new, torch.tensor([True, True, False]))
    assert result.tolist() == pytest.approx([-1, LOWEST_LOGPROB, 0])
    result.sum().backward()
    assert new.grad.tolist() == [1, 0, 0]
