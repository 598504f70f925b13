"""Importance weights between engine and learner: by hand, detached, finite, and unmoved by what is masked."""

import dataclasses
import math

import pytest
import torch

from turngym.errors import ConfigError, UnknownNameError
from turngym.learner.losses.corrections import GATES, LEVELS, MODES, OLDER_NAMES, CorrectionInputs, correct
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


def weights(level, mode, made):
    return correct(level, mode, made).weights_N.tolist()


RATIOS = [0.25, 1.5, 3.0, 1.0]
LOGS = [math.log(ratio) for ratio in RATIOS]
BOUNDS = (0.5, 2.0)
COMBINATIONS = [(level, mode) for level in LEVELS for mode in MODES if (level, mode) != ("token", "gate")]


def test_tokens_by_hand():
    made = inputs(LOGS, BOUNDS)
    assert weights("token", "truncate", made) == pytest.approx([0.25, 1.5, 2.0, 1.0])
    assert weights("token", "clip", made) == pytest.approx([0.5, 1.5, 2.0, 1.0])
    assert weights("token", "mask", made) == pytest.approx([0, 1.5, 0, 1.0])


def test_sequences_by_hand():
    """Products 0.375 and 3, geometric means their roots 0.6124 and 1.7321."""
    two = {"sequence_N": torch.tensor([0, 0, 1, 1]), "num_sequences": 2}
    made, root = inputs(LOGS, BOUNDS, **two), math.sqrt
    assert weights("seq", "truncate", made) == pytest.approx([0.375, 0.375, 2, 2])
    assert weights("seq", "clip", made) == pytest.approx([0.5, 0.5, 2, 2])
    assert weights("seq", "mask", made) == [0] * 4
    assert weights("seq", "mask", inputs(LOGS, (0.3, 2.0), **two)) == pytest.approx([0.375, 0.375, 0, 0])
    assert weights("geometric", "clip", made) == pytest.approx([root(0.375)] * 2 + [root(3)] * 2)
    assert weights("geometric", "truncate", inputs(LOGS, (1, 1.5), **two)) == pytest.approx(
        [root(0.375)] * 2 + [1.5] * 2
    )
    assert weights("geometric", "mask", inputs(LOGS, (1, 2), **two)) == pytest.approx([0, 0, root(3), root(3)])
    assert weights("geometric", "gate", inputs(LOGS, (1, 2), **two)) == pytest.approx([0, 0, 2, 1])
    assert weights("seq", "gate", inputs(LOGS, (0.3, 1), **two)) == pytest.approx([0.3, 1, 0, 0])


def test_context_between_turns_enters_no_sequence():
    mask = torch.tensor([True, False, True])
    made = inputs([math.log(2), 50.0, math.log(2)], (0, 5), is_action_N=mask)
    assert weights("seq", "clip", made) == pytest.approx([4, 1, 4])
    assert weights("geometric", "clip", made) == pytest.approx([2, 1, 2])


def test_a_correction_that_overflows():
    """R31: exp(200) is inf in fp32, and a rejected sequence is not 0 * inf."""
    first, kept, rejected = [0.1, -0.1, 0.0], [200.0, -200.0, 0.3], [200.0, 0.0, 0.0]
    for level, mode in COMBINATIONS:
        alone = weights(level, mode, inputs(first, (0.5, 5)))
        for second in (kept, rejected):
            made = inputs(
                first + second, (0.5, 5), sequence_N=torch.arange(6) // 3, num_sequences=2,
            )  # fmt: skip
            made = dataclasses.replace(
                made, logprobs_N=made.logprobs_N.float(), rollout_logprobs_N=made.rollout_logprobs_N.float()
            )
            both = weights(level, mode, made)
            assert both[:3] == pytest.approx(alone, rel=1e-6)
            assert all(0 <= weight <= 5 for weight in both)
    level, mode = OLDER_NAMES["seq-mask-tis"]
    made = inputs(kept + rejected, (0.5, 5), sequence_N=torch.arange(6) // 3, num_sequences=2)
    assert weights(level, mode, made) == pytest.approx([5, 0.5, math.exp(0.3), 0, 0, 0])


def test_a_sequence_gate_lets_no_large_token_through():
    """A token of ratio e^5 = 148 in a sequence whose geometric mean is 1, at a threshold of 5."""
    for level, mode in COMBINATIONS:
        assert max(weights(level, mode, inputs([5.0, -5.0], (0.5, 5)))) <= 5


def test_a_part_of_the_vocabulary_shows_as_the_surviving_mass():
    """R30: top-p 0.9 of (0.665, 0.245, 0.09) keeps 0.91; the engine says log(0.665 / 0.91), the learner log(0.665)."""
    first, second, _ = torch.tensor([2.0, 1.0, 0.0]).softmax(0)
    learner, engine = first.log().expand(100), (first / (first + second)).log().expand(100)
    assert (engine[0].item(), learner[0].item()) == pytest.approx((-0.3133, -0.4076), abs=1e-4)
    made = inputs([0.0] * 100, logprobs_N=learner, rollout_logprobs_N=engine)
    assert weights("token", "truncate", made)[0] == pytest.approx(0.91, abs=1e-4)
    assert weights("geometric", "truncate", made)[0] == pytest.approx(0.91, abs=1e-4)
    assert weights("seq", "truncate", made)[0] == pytest.approx(8e-5, rel=0.01)
    assert values(correct("off", "truncate", made).metrics)["mismatch/ratio_mean"] == pytest.approx(0.91, abs=1e-4)


def divergent(engine, learner, bounds, gating, sequence=None):
    log = torch.tensor(engine, dtype=torch.float64).log()
    made = inputs([0.0] * len(engine), bounds, gating=gating, rollout_logprobs_N=log)
    made = dataclasses.replace(made, logprobs_N=torch.tensor(learner, dtype=torch.float64).log())
    if sequence is None:
        return made
    return dataclasses.replace(made, sequence_N=torch.tensor(sequence), num_sequences=max(sequence) + 1)


def test_divergences_gate_and_the_ratio_weighs():
    """0.2 against 0.3: KL 0.2 log(2/3) + 0.8 log(8/7) = 0.02573, distance 0.1; 0.5 against 0.4: 0.02041 and 0.1."""
    engine, learner = [0.2, 0.5], [0.3, 0.4]
    assert weights("token", "mask", divergent(engine, learner, (0, 0.023), "binary_kl")) == pytest.approx([0, 0.8])
    assert weights("token", "mask", divergent(engine, learner, (0, 0.026), "binary_kl")) == pytest.approx([1.5, 0.8])
    assert weights("token", "mask", divergent(engine, learner, (0, 0.099), "tv")) == [0, 0]
    assert weights("token", "mask", divergent(engine, learner, (0, 0.101), "tv")) == pytest.approx([1.5, 0.8])
    for level in ("seq", "geometric"):  # the mean of both is 0.02307
        assert weights(level, "mask", divergent(engine, learner, (0, 0.0230), "binary_kl")) == [0, 0]
        kept = weights(level, "mask", divergent(engine, learner, (0, 0.0232), "binary_kl"))
        assert kept == pytest.approx([1.5, 0.8])
        apart = divergent(engine, learner, (0, 0.023), "binary_kl", sequence=[0, 1])
        assert weights(level, "mask", apart) == pytest.approx([0, 0.8])


@pytest.mark.slow
@pytest.mark.parametrize("noise", [1e-9, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("level", list(LEVELS))
def test_rounding_drops_no_token_from_a_divergence(noise, level):
    """In fp32 a lower test at 0 drops 44 % of tokens at noise 1e-4, in fp64 at 1e-9; nothing here is far off."""
    torch.manual_seed(0)
    engine = -0.05 - 3 * torch.rand(8000, dtype=torch.float64 if noise == 1e-9 else torch.float32)
    made = inputs([0.0] * 8000, (0.0, 0.1), gating="binary_kl", rollout_logprobs_N=engine)
    made = dataclasses.replace(
        made,
        logprobs_N=engine + noise * torch.randn(8000, dtype=engine.dtype),
        sequence_N=torch.arange(8000) // 8,
        num_sequences=1000,
    )
    assert values(correct(level, "mask", made).metrics)["is_weight/masked"] == 0


def test_unknown_logprobs_of_the_engine_reject_their_unit():
    two = {"sequence_N": torch.tensor([0, 0, 1]), "num_sequences": 2}
    made = inputs([math.log(1.5)] * 3, (0, 5), **two)
    made.rollout_logprobs_N[0] = math.nan
    assert weights("off", "mask", made) == [1, 1, 1]
    for mode in MODES:
        for level in LEVELS:
            if (level, mode) == ("token", "gate"):
                continue
            expected = {"token": [0, 1.5, 1.5], "seq": [0, 0, 1.5], "geometric": [0, 0, 1.5]}[level]
            result = correct(level, mode, made)
            assert result.weights_N.tolist() == pytest.approx(expected)
            assert all(math.isfinite(value) for value in values(result.metrics).values())
            assert values(result.metrics)["mismatch/unknown"] == pytest.approx(1 / 3)


def test_the_mismatch_by_lag():
    """Two tokens of the current weights with log-ratios +-0.1, one from 2 versions ago with 1, one from 20 with 2."""
    lags = torch.tensor([0, 0, 2, 20])
    result = values(correct("token", "mask", inputs([0.1, -0.1, 1.0, 2.0], lags_N=lags)).metrics)
    k3 = {log: math.exp(log) - 1 - log for log in (0.1, -0.1, 1.0, 2.0)}
    by_lag = {name.rpartition("/")[2]: value for name, value in result.items() if name.startswith("mismatch/kl_k3/")}
    assert by_lag == pytest.approx({"lag_0": (k3[0.1] + k3[-0.1]) / 2, "lag_2": k3[1.0], "lag_8_and_more": k3[2.0]})
    assert result["mismatch/abs_diff/lag_0"] == pytest.approx(0.1)
    assert result["mismatch/kl_k3"] == pytest.approx(sum(k3.values()) / 4)


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
        "is_weight/masked": 0,
        "is_weight/clipped": 0.5,
        "mismatch/unknown": 0,
        "mismatch/shaped": 0,
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


@pytest.mark.parametrize(("level", "mode"), COMBINATIONS)
def test_masked_positions_have_weight_one_and_enter_no_metric(level, mode):
    mask = torch.tensor([True, False, False])
    masked = inputs([0.3, 0.0, 0.0], is_action_N=mask)
    masked.rollout_logprobs_N[1:] = torch.tensor([math.nan, -math.inf])
    result = correct(level, mode, masked)
    assert result.weights_N.tolist() == pytest.approx([math.exp(0.3), 1, 1])
    assert values(result.metrics) == pytest.approx(values(correct(level, mode, inputs([0.3])).metrics))


@pytest.mark.parametrize(
    ("level", "mode", "gating"),
    [(*both, "ratio") for both in COMBINATIONS] + [(level, "mask", gate) for level in LEVELS for gate in GATES],
)
def test_any_input_stays_finite(level, mode, gating):
    logs = [0.1, -0.1, 0.0, 200.0, -200.0, 0.3, -1e30, -math.inf, 300.0, -300.0]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        extreme = inputs(logs, gating=gating, sequence_N=torch.arange(10) // 3, num_sequences=4)
        extreme.rollout_logprobs_N[5] = -math.inf
        extreme = dataclasses.replace(
            extreme, logprobs_N=extreme.logprobs_N.to(dtype), rollout_logprobs_N=extreme.rollout_logprobs_N.to(dtype)
        )
        result = correct(level, mode, extreme)
        assert result.weights_N.isfinite().all()
        assert result.weights_N.max() <= 2 or gating != "ratio"
        assert all(math.isfinite(value) for value in values(result.metrics).values())
        if level == "token":
            assert result.weights_N[:3].tolist() == pytest.approx([math.exp(0.1), math.exp(-0.1), 1.0], rel=0.02)


def test_weights_carry_no_gradient():
    policy = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert not correct("token", "truncate", inputs([0.0] * 3, logprobs_N=policy)).weights_N.requires_grad


def test_bad_options_are_refused():
    with pytest.raises(UnknownNameError, match="Did you mean 'truncate'"):
        correct("token", "truncat", inputs([0.0]))
    with pytest.raises(UnknownNameError, match="level of the importance-sampling correction 'tokens'"):
        correct("tokens", "mask", inputs([0.0]))
    with pytest.raises(ConfigError, match="0 <= low <= high"):
        inputs([0.0], bounds=(2.0, 0.5))
    with pytest.raises(ConfigError, match="its mode is 'mask', got 'clip'"):
        correct("token", "clip", inputs([0.0], gating="tv"))
    with pytest.raises(ConfigError, match="from above only"):
        correct("seq", "mask", inputs([0.0], bounds=(0.5, 5.0), gating="binary_kl"))
    with pytest.raises(ConfigError, match="for tokens 'mask' is the same"):
        correct("token", "gate", inputs([0.0]))


def test_shaped_tokens_have_no_ratio():
    """Of two sequences of two tokens, one token each was shaped; its ratio of 0.01 is the mass a grammar left."""
    made = inputs(
        [math.log(0.01), math.log(1.5), math.log(0.8), math.log(0.01)],
        (0.5, 2.0),
        sequence_N=torch.tensor([0, 0, 1, 1]),
        num_sequences=2,
        is_shaped_N=torch.tensor([True, False, False, True]),
        lags_N=torch.tensor([1, 0, 0, 1]),
    )
    assert weights("token", "truncate", made) == pytest.approx([1, 1.5, 0.8, 1])
    assert weights("token", "mask", made) == pytest.approx([1, 1.5, 0.8, 1])
    assert weights("token", "clip", dataclasses.replace(made, bounds=(1.1, 2.0))) == pytest.approx([1, 1.5, 1.1, 1])
    for level in ("seq", "geometric"):  # the sequence's weight is that of the token that has a ratio
        assert weights(level, "truncate", made) == pytest.approx([1.5, 1.5, 0.8, 0.8])
        assert weights(level, "mask", dataclasses.replace(made, bounds=(0.9, 2.0))) == pytest.approx([1.5, 1.5, 0, 0])
    result = values(correct("token", "truncate", made).metrics)
    assert result["mismatch/shaped"] == 0.5
    assert result["mismatch/unknown"] == 0
    assert result["mismatch/ratio_mean"] == pytest.approx((1.5 + 0.8) / 2)
    assert result["mismatch/abs_diff"] == pytest.approx((math.log(1.5) - math.log(0.8)) / 2)
    assert "mismatch/abs_diff/lag_1" not in result
    assert result["is_weight/mean"] == pytest.approx((1.5 + 0.8) / 2)
    assert values(correct("off", "truncate", made).metrics)["mismatch/abs_diff"] == result["mismatch/abs_diff"]


@pytest.mark.parametrize(("level", "mode"), COMBINATIONS)
def test_a_sequence_of_shaped_tokens_alone_weighs_one(level, mode):
    """Also where an engine logprob is not known, and 1 lies outside the bounds: there is nothing to correct."""
    made = inputs([0.3, -5.0], (1.2, 2.0), is_shaped_N=torch.tensor([True, True]))
    made.rollout_logprobs_N[0] = math.nan
    result = correct(level, mode, made)
    assert result.weights_N.tolist() == [1, 1]
    assert values(result.metrics) == {"mismatch/shaped": 1.0}


def test_the_mass_that_a_truncation_keeps_is_no_mismatch():
    """Probabilities 0.5, 0.3, 0.15, 0.05 cut at top-p 0.9: the first three are drawn, divided by their sum 0.95."""
    learner = torch.tensor([0.5, 0.3, 0.15] * 40, dtype=torch.float64).log()
    engine = learner - math.log(0.95)
    made = inputs([0.0] * 120, (0.5, 2.0), logprobs_N=learner, rollout_logprobs_N=engine)
    assert values(correct("token", "truncate", made).metrics)["mismatch/kl_k1"] == pytest.approx(-math.log(0.95))
    assert weights("seq", "truncate", made)[0] == pytest.approx(0.95**120)  # 0.002: such a sequence teaches nothing
    marked = dataclasses.replace(made, is_shaped_N=torch.ones(120, dtype=torch.bool))
    assert weights("seq", "truncate", marked) == [1] * 120
