"""Importance weights between engine and learner: by hand, detached, finite, and unmoved by what is masked."""

import dataclasses
import math

import pytest
import torch

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.corrections import CorrectionInputs, correct
from turngym.learner.metrics import merge, values


def inputs(log_ratios, bounds=(0.0, 2.0), **changes):
    """Log-ratios learner / engine of tokens the engine gave logprob -1; one sequence."""
    rollout = torch.full((len(log_ratios),), -1.0, dtype=torch.float64)
    made = CorrectionInputs(
        logprobs_N=rollout + torch.tensor(log_ratios, dtype=torch.float64),
        rollout_logprobs_N=rollout,
        is_action_N=torch.ones(len(log_ratios), dtype=torch.bool),
        sequence_N=torch.zeros(len(log_ratios), dtype=torch.int64),
        num_sequences=1,
        bounds=bounds,
    )
    return dataclasses.replace(made, **changes)


def test_truncation_by_hand():
    log_ratios = [math.log(0.25), math.log(1.5), math.log(3.0), 0.0]
    result = correct("token", "truncate", inputs(log_ratios, bounds=(0.5, 2.0)))
    assert result.weights_N.tolist() == pytest.approx([0.5, 1.5, 2.0, 1.0])
    from_above = correct("token", "truncate", inputs(log_ratios))
    assert from_above.weights_N.tolist() == pytest.approx([0.25, 1.5, 2.0, 1.0])


def test_metrics_by_hand():
    result = correct("token", "truncate", inputs([math.log(0.5), math.log(4.0)]))  # weights 0.5 and 2
    expected = {
        "mismatch/abs_diff": 1.5 * math.log(2),
        "mismatch/kl_k1": -0.5 * math.log(2),
        "mismatch/kl_k3": 2.25 - 1 - 0.5 * math.log(2),
        "mismatch/ratio_mean": 2.25,
        "mismatch/ratio_max": 4.0,
        "mismatch/outside_bounds": 0.5,
        "is_weight/mean": 1.25,
        "is_weight/effective_size": 2.5**2 / (2 * 4.25),
    }
    assert values(result.metrics) == pytest.approx(expected)


def test_metrics_of_parts_merge_to_those_of_the_whole():
    log_ratios = [0.1, -0.4, 0.9, 2.0, 0.0]
    whole = correct("token", "truncate", inputs(log_ratios)).metrics
    empty = correct("token", "truncate", inputs([])).metrics
    parts = [correct("token", "truncate", inputs(part)).metrics for part in (log_ratios[:2], log_ratios[2:])]
    assert values(merge([parts[0], empty, parts[1]])) == pytest.approx(values(whole))
    assert values(empty) == {}


def test_off_leaves_weights_at_one_and_still_measures():
    result = correct("off", "truncate", inputs([0.5, -0.5]))
    assert result.weights_N.tolist() == [1, 1]
    assert values(result.metrics)["mismatch/abs_diff"] == pytest.approx(0.5)


def test_masked_positions_have_weight_one_and_enter_no_metric():
    mask = torch.tensor([True, False, False])
    masked = inputs([0.3, 0.0, 0.0], is_action_N=mask)
    masked.rollout_logprobs_N[1:] = torch.tensor([math.nan, -math.inf])
    result = correct("token", "truncate", masked)
    assert result.weights_N.tolist() == pytest.approx([math.exp(0.3), 1, 1])
    assert values(result.metrics) == pytest.approx(values(correct("token", "truncate", inputs([0.3])).metrics))


def test_any_input_stays_finite():
    """R31's numbers among them: exp(200) is inf in fp32."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        extreme = inputs([0.1, -0.1, 0.0, 200.0, -200.0, 0.3, -1e30])
        extreme = dataclasses.replace(
            extreme, logprobs_N=extreme.logprobs_N.to(dtype), rollout_logprobs_N=extreme.rollout_logprobs_N.to(dtype)
        )
        result = correct("token", "truncate", extreme)
        assert result.weights_N.isfinite().all()
        assert all(math.isfinite(value) for value in values(result.metrics).values())
        assert result.weights_N[:3].tolist() == pytest.approx([math.exp(0.1), math.exp(-0.1), 1.0], rel=0.02)
        assert result.weights_N[3] == 2


def test_weights_carry_no_gradient():
    policy = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert not correct("token", "truncate", inputs([0.0] * 3, logprobs_N=policy)).weights_N.requires_grad


def test_bad_options_are_refused():
    with pytest.raises(UnknownNameError, match="importance-sampling correction 'token/truncat'"):
        correct("token", "truncat", inputs([0.0]))
    with pytest.raises(ConfigError, match="0 <= low <= high"):
        inputs([0.0], bounds=(2.0, 0.5))
