"""From options to the loss: older names, defaults of the papers, and what does not go together."""

import pytest

from turngym.config import TrainConfig, parse_train
from turngym.errors import ConfigError
from turngym.learner.losses.choice import aggregation_choice, correction_choice, policy_options
from turngym.learner.run.from_settings import objective, value_objective

CORRECTION = "--algo.advantage.is_correction_"


def config(words: str = "") -> TrainConfig:
    return parse_train(["--agent", "env:Guess", *words.replace("IS_", CORRECTION).split()])


@pytest.mark.parametrize(
    ("words", "level", "mode", "bounds"),
    [
        ("", "token", "truncate", (0.0, 2.0)),
        ("IS_type tis IS_threshold 0.5 5", "token", "clip", (0.5, 5.0)),
        ("IS_type icepop IS_threshold 0.5 5", "token", "mask", (0.5, 5.0)),
        ("IS_type seq-mask-tis IS_threshold 0.5 5", "geometric", "gate", (0.5, 5.0)),
        ("IS_type tis", "token", "clip", (0.5, 5.0)),
        ("IS_threshold 3", "token", "truncate", (0.0, 3.0)),
        ("IS_level seq IS_mode mask IS_gating binary_kl IS_threshold 0.005", "seq", "mask", (0.0, 0.005)),
    ],
)
def test_corrections(words, level, mode, bounds):
    choice = correction_choice(config(words).algo.advantage)
    assert (choice.level, choice.mode, choice.bounds) == (level, mode, bounds)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("IS_threshold 1 2 3", "wants HIGH or LOW HIGH"),
        ("IS_threshold 5 0.5", "0 <= LOW <= HIGH"),
        ("IS_mode mask IS_gating tv", "give is_correction_threshold one number"),
        ("IS_mode clip IS_gating tv IS_threshold 0.1", "its mode is 'mask'"),
        ("IS_type icepop IS_gating tv IS_threshold 0.1", "leave one of them out"),
    ],
)
def test_corrections_that_are_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        correction_choice(config(words).algo.advantage)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "length"),
    [
        ("", "token-mean", None),
        ("--actor.policy_loss_type cispo", "token-mean", None),
        ("--actor.policy_loss_type gspo", "seq-mean-token-mean", None),
        ("--actor.policy_loss_type sapo --actor.loss_agg_mode token-mean", "token-mean", None),
        ("--algo.advantage.estimator dr_grpo --data.max_len 900", "seq-mean-token-sum-norm", 900),
        ("--algo.advantage.estimator dr_grpo --actor.policy_loss_type gspo --actor.loss_agg_length 70",
         "seq-mean-token-sum-norm", 70),
        ("--algo.advantage.estimator dr_grpo --actor.loss_agg_mode seq-mean-token-mean", "seq-mean-token-mean", None),
        ("--actor.loss_agg_mode seq-mean-token-sum-norm --rollout.max_new_tokens 50 --rollout.max_turns 3 "
         "--data.max_len 900", "seq-mean-token-sum-norm", 150),
        ("--actor.loss_agg_mode seq-mean-token-sum-norm --rollout.max_new_tokens 50 --rollout.max_turns 3 "
         "--rollout.max_episode_tokens 120", "seq-mean-token-sum-norm", 120),
    ],
)  # fmt: skip
def test_aggregations(words, name, length):
    choice = aggregation_choice(config(words))
    assert (choice.name, choice.length) == (name, length)


def test_clip_ranges_and_gates():
    options = policy_options(config("--actor.eps_clip 0.1 --actor.dual_clip 3").actor)
    assert (options.eps_low, options.eps_high, options.dual_clip) == (0.1, 0.1, 3)
    options = policy_options(config("--actor.eps_clip_low_high 0.2 0.3 --actor.sapo_temperatures 1 2").actor)
    assert (options.eps_low, options.eps_high, options.gate_positive, options.gate_negative) == (0.2, 0.3, 1, 2)


def test_the_objective_has_every_choice():
    words = (
        "--actor.policy_loss_type sapo --actor.entropy_coef 0.01 --actor.aux_loss_coef 0.02 --algo.kl.use_loss "
        "--algo.kl.init_coef 0.03 --algo.kl.estimator k2 --algo.kl.unbiased_gradient IS_type icepop"
    )
    made = objective(config(words))
    assert (made.policy_loss, made.aggregation, made.aggregation_length) == ("sapo", "seq-mean-token-mean", None)
    assert (made.entropy_coef, made.aux_loss_coef, made.kl_coef, made.kl_estimator) == (0.01, 0.02, 0.03, "k2")
    assert made.has_unbiased_kl
    assert (made.correction_level, made.correction_mode, made.correction_gating) == ("token", "mask", "ratio")
    assert objective(config("--algo.kl.init_coef 0.03")).kl_coef == 0


def test_stale_data_without_a_correction_has_the_engines_logprobs_as_denominator():
    """R44: one of the two accounts for staleness."""
    for words, is_stale, coupled, corrects in [
        ("IS_level off", True, True, True),
        ("IS_level off", False, False, False),
        ("", True, False, True),
        ("IS_level off IS_type tis", True, False, True),
    ]:
        made = objective(config(words), is_stale=is_stale)
        assert (made.uses_rollout_as_old, made.corrects_staleness) == (coupled, corrects)


def test_the_critics_objective():
    assert value_objective(config("--critic.value_clip 0.2")).value_clip == 0.2
