"""Engine against learner: each cause leaves its own marks, and no cause is given the name of another.

The numbers are worked from logits (2, 1, 0), where engine and learner differ in one way.
"""

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.learner.doctor.diagnosis import diagnose
from turngym.learner.doctor.finding import Severity, Stage
from turngym.learner.doctor.mismatch import measure

LOGITS = np.array([2.0, 1.0, 0.0])
OFF = {"mismatch/kl_k3/lag_0": None, "mismatch/kl_k3/lag_1": None, "mismatch/kl_k3/lag_2": None}
CAUSES = ["truncated_sampling", "temperature", "coarse_numerics", "staleness", "growing_mismatch"]


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


def marks(sampled, engine, learner):
    """Metrics of tokens drawn from `sampled`, with both sides' logprobs of them."""
    log_ratio = np.where(sampled > 0, learner - engine, 0.0)
    ratio = np.exp(log_ratio)
    return OFF | {
        "mismatch/abs_diff": float(sampled @ np.abs(log_ratio)),
        "mismatch/kl_k1": float(sampled @ -log_ratio),
        "mismatch/kl_k3": float(sampled @ (ratio - 1 - log_ratio)),
        "mismatch/ratio_mean": float(sampled @ ratio),
    }


def truncated(kept):
    p = np.exp(log_softmax(LOGITS))
    on = np.arange(3) < kept
    engine = np.where(on, p, 0) / p[on].sum()
    return marks(engine, np.log(np.where(on, engine, 1.0)), np.log(p))


def tempered(temperature):
    """The engine samples at a temperature that the learner does not know."""
    right = log_softmax(LOGITS / temperature)
    return marks(np.exp(right), right, log_softmax(LOGITS))


def named(run):
    return [name for name in diagnose(run).findings if name in CAUSES]


def growing(i):
    return 0.0015 * 1.25**i  # 0.0015 to 0.4


def test_rounding_is_no_finding_in_any_dtype(make_run):
    assert named(make_run()) == []
    fp32 = OFF | {"mismatch/abs_diff": 1.4e-7, "mismatch/kl_k1": 2e-8, "mismatch/kl_k3": 3e-14}
    assert named(make_run(fp32, {"ds.param_dtype": "fp32"})) == []


def test_the_ratio_of_a_nucleus_is_the_mass_it_keeps(make_run):
    changes = truncated(2)
    assert changes["mismatch/ratio_mean"] == pytest.approx(0.910, abs=5e-4)  # 0.665 + 0.245
    finding = diagnose(make_run(changes, {"rollout.top_p": 0.9}, train={})).findings["truncated_sampling"]
    assert (finding.stage, finding.severity) == (Stage.ENGINE, Severity.PROBLEM)
    assert "keeps 0.910 of the mass" in finding.evidence[1]
    assert "top_p 0.9" in finding.evidence[2]


def test_episodes_say_how_they_were_sampled_whatever_the_configuration_says(make_run, make_episode):
    train = {1: [make_episode(1, sampling=Sampling(24, top_k=2))]}
    run = make_run(truncated(2), train=train)
    assert named(run) == ["truncated_sampling"]
    assert "top_k 2" in diagnose(run).findings["truncated_sampling"].evidence[2]


def test_truncation_that_nobody_asked_for_is_found_too(make_run):
    finding = diagnose(make_run(truncated(2))).findings["truncated_sampling"]
    assert "generation_config.json" in finding.evidence[2]


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.5])
def test_a_temperature_on_one_side_only(make_run, temperature):
    changes = tempered(temperature)
    assert changes["mismatch/ratio_mean"] == pytest.approx(1)  # what tells it from truncation
    if temperature == 0.6:
        assert changes["mismatch/abs_diff"] == pytest.approx(0.2716, abs=2e-4)  # .8166*.205 + .1543*.461 + .0292*1.128
    run = make_run(changes, {"rollout.temperature": temperature}, train={})
    assert named(run) == ["temperature"]
    assert f"temperature {temperature}" in diagnose(run).findings["temperature"].evidence[0]


def test_logprobs_divided_by_the_temperature(make_run):
    right = log_softmax(LOGITS / 0.6)
    changes = marks(np.exp(right), log_softmax(LOGITS) / 0.6, right)  # -0.6793 where -0.2026 is right
    assert changes["mismatch/kl_k1"] == pytest.approx(-0.4767, abs=2e-4)
    assert named(make_run(changes, {"rollout.temperature": 0.6}, train={})) == ["temperature"]


def test_the_same_marks_at_temperature_one_are_numerics(make_run):
    run = make_run(tempered(0.6), {"vllm.dtype": "fp16"})
    assert named(run) == ["coarse_numerics"]
    assert "the engine computes in fp16, the learner in bf16" in diagnose(run).findings["coarse_numerics"].evidence


def test_what_is_rounding_in_bf16_is_none_in_fp32(make_run):
    assert named(make_run(OFF, {"ds.param_dtype": "fp32"})) == ["coarse_numerics"]
    assert named(make_run(OFF, {"ds.param_dtype": "fp32", "vllm.dtype": "bf16"})) == []


def lags(*values):
    return {f"mismatch/kl_k3/lag_{lag}": value for lag, value in enumerate(values)}


def test_staleness_grows_with_age_and_not_with_the_steps(make_run):
    run = make_run(lags(0.0015, 0.02, 0.08), {"algo.advantage.is_correction_level": "off"})
    assert named(run) == ["staleness"]
    finding = diagnose(run).findings["staleness"]
    assert (finding.stage, finding.severity) == (Stage.ROLLOUT, Severity.WARNING)
    assert finding.evidence[0] == "kl_k3 by age: 0 versions: 0.0015, 1 versions: 0.02, 2 versions: 0.08"
    assert diagnose(make_run(lags(0.0015, 0.02, 0.08))).findings["staleness"].severity is Severity.NOTE


def test_staleness_without_any_current_token_is_still_age(make_run):
    assert named(make_run(lags(None, 0.02, 0.08))) == ["staleness"]
    assert named(make_run(lags(None, 0.002, 0.0021))) == []


def test_the_longest_lag_stands_for_all_beyond_it(make_run):
    run = make_run(lags(0.0015, None, None) | {"mismatch/kl_k3/lag_1": 0.02, "mismatch/kl_k3/lag_8_and_more": 0.2})
    assert list(measure(run).by_lag) == [0, 1, 8]
    assert named(run) == ["staleness"]


CACHE_OFF = {"vllm.enable_prefix_caching": False}
RESTARTED = {"part": lambda i: 1 if i < 13 else 2}


@pytest.mark.parametrize(
    ("changes", "settings", "stage", "text"),
    [
        ({}, {}, Stage.WEIGHT_SYNC, "lost, or the engine serves keys and values of old weights"),
        ({}, CACHE_OFF, Stage.WEIGHT_SYNC, "updates do not reach the engine"),
        (
            {},
            CACHE_OFF | {"ds.lora.rank": 8, "ds.lora.sync": "adapter"},
            Stage.WEIGHT_SYNC,
            "LoRA (rank 8, sync adapter)",
        ),
        (RESTARTED, {}, Stage.WEIGHT_SYNC, "restarted before step 14, and it did not fall there"),
    ],
)
@pytest.mark.parametrize("name", ["mismatch/kl_k3", "mismatch/kl_k3/lag_0"])
def test_a_mismatch_that_grows_under_current_weights(make_run, changes, settings, stage, text, name):
    changes = {**(OFF if name == "mismatch/kl_k3" else {}), name: growing, "kl/reference": None, **changes}
    run = make_run(changes, settings)
    assert named(run) == ["growing_mismatch"]
    finding = diagnose(run).findings["growing_mismatch"]
    assert finding.stage is stage
    assert text in " ".join([finding.title, *finding.evidence, finding.what_to_do])


def test_one_that_a_restart_ends_may_be_either(make_run):
    changes = OFF | RESTARTED | {"mismatch/kl_k3": lambda i: growing(2 * (i % 13))}
    finding = diagnose(make_run(changes)).findings["growing_mismatch"]
    assert "it fell there" in finding.evidence[1]
    assert finding.title.startswith("Weight updates are lost, or")
    assert "--vllm.enable_prefix_caching false" in finding.what_to_do


def test_an_engine_with_the_first_weights_is_as_far_as_the_reference(make_run):
    changes = OFF | {"mismatch/kl_k3": growing, "mismatch/kl_k1": growing, "kl/reference": lambda i: -growing(i)}
    finding = diagnose(make_run(changes)).findings["growing_mismatch"]
    assert finding.title == "Weight updates do not reach the engine"


def test_an_engine_that_follows_the_learner_has_stale_keys(make_run):
    changes = OFF | {
        "mismatch/kl_k3": growing,
        "mismatch/kl_k1": growing,
        "kl/reference": lambda i: 20 * growing(i),
    }
    finding = diagnose(make_run(changes)).findings["growing_mismatch"]
    assert (finding.title, finding.stage) == ("The engine serves keys and values of old weights", Stage.ENGINE)


def test_a_drift_that_becomes_one_sided_is_not_called_truncation(make_run):
    changes = OFF | dict.fromkeys(("mismatch/abs_diff", "mismatch/kl_k1", "mismatch/kl_k3"), growing)
    assert named(make_run(changes)) == ["growing_mismatch"]


def test_old_data_with_ratio_one_and_no_correction(make_run):
    changes = {"policy/ratio_max": 1.0}
    off = {"algo.advantage.is_correction_level": False}  # as YAML reads a bare off
    finding = diagnose(make_run(changes, off)).findings["uncorrected_staleness"]
    assert "tokens are up to 2 versions old" in finding.evidence[0]
    assert "uncorrected_staleness" not in diagnose(make_run(changes)).findings
    assert "uncorrected_staleness" not in diagnose(make_run(settings=off)).findings


def test_restarts_are_seen_in_the_parts(make_run):
    assert measure(make_run()).restarts == ()
    assert measure(make_run(RESTARTED)).restarts == (14,)
