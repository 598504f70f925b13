"""The whole loss: three policies, KL, entropy, load balance, and the same gradient however a step is split."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from turngym.errors import ConfigError, LearnerError
from turngym.learner.losses.aggregations import LOSS_AGGREGATIONS, count_totals
from turngym.learner.losses.corrections import GATES, LEVELS, MODES
from turngym.learner.losses.kl import KL_ESTIMATORS
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyOptions
from turngym.learner.metrics import merge, values
from turngym.learner.models.logprobs import ActionLogprobs
from turngym.learner.ranks.packing import MicroBatching, distribute

PLAIN = Objective("ppo", PolicyOptions(), "token-mean", "off", "truncate", (0.0, 2.0))
LENGTH = 12


def score(batch, weight):
    """Logprobs and entropies of a softmax table of bigrams in fp64, with gradient; NaN off actions."""
    ids = torch.tensor(batch.token_ids).long()
    rows = weight[ids].log_softmax(-1)
    if not batch.num_tokens:
        return ActionLogprobs(weight[:0, 0], weight[:0, 0])
    mask = torch.tensor(batch.is_action)
    logprobs = torch.cat([rows[:1, 0], rows[:-1].gather(-1, ids[1:, None])[:, 0]]).where(mask, math.nan)
    entropy = torch.cat([rows[:1, 0], -(rows[:-1].exp() * rows[:-1]).sum(-1)]).where(mask, math.nan)
    return ActionLogprobs(logprobs, entropy)


def table():
    return torch.randn(50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.fixture
def step(make_batch):
    """Eight sequences of seven attempts, unequal in length, from weights of three versions, near the policy's own."""
    rng = np.random.default_rng(3)
    masks = [[0, *rng.integers(0, 2, length), 1] for length in (1, 9, 4, 30, 2, 2, 17, 6)]
    batch = make_batch(masks, attempts=[0, 1, 2, 3, 3, 4, 5, 6])
    policy = score(batch, table()).logprobs_N.detach().numpy()
    noisy = [(policy + scale * rng.normal(size=len(policy))).astype(np.float32) for scale in (0.2, 0.3, 0.8)]
    batch = replace(batch, rollout_logprobs=noisy[1], versions=np.where(batch.is_action, rng.integers(3, 6), -1))
    batch = replace(batch, is_shaped=batch.is_action & (np.arange(batch.num_tokens) % 5 == 0))
    return batch.with_old_logprobs(noisy[0]).with_ref_logprobs(noisy[2])


def gradient(objective, parts, totals):
    """Return gradient, loss and metrics of the parts of a step together; each part has an aux loss of 2."""
    weight, losses, metrics = table(), [], []
    for part in parts:
        loss, part_metrics = objective(score(part, weight), part, totals, aux_loss=weight.mean() + 2)
        loss.backward()
        losses.append(loss.item())
        metrics.append(part_metrics)
    return weight.grad, sum(losses), values(merge(metrics))


def check_split(objective, step):
    """Packed by tokens over three ranks, with empty micro-batches, an attempt cut in two, and rows in another order."""
    totals = count_totals(step, 5)
    whole, loss, metrics = gradient(objective, [step], totals)
    micros = [micro for rank in distribute(step.lengths, 3, MicroBatching(max_tokens=20)) for micro in rank]
    assert any(not micro for micro in micros)
    split, split_loss, split_metrics = gradient(objective, [step.select(micro) for micro in micros], totals)
    assert whole.abs().max() > 1e-4
    assert (split - whole).abs().max() < 1e-12
    assert split_loss == pytest.approx(loss, abs=1e-12)
    assert split_metrics == pytest.approx(metrics)
    permuted, *_ = gradient(objective, [step.select(range(7, -1, -1))], totals)
    assert (permuted - whole).abs().max() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", list(LOSS_AGGREGATIONS))
@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_the_gradient_does_not_depend_on_the_split(loss, aggregation, step):
    """R36, with everything else in the loss too."""
    objective = Objective(
        loss, PolicyOptions(dual_clip=3.0), aggregation, "seq", "clip", (0.1, 10.0), kl_coef=0.1,
        aggregation_length=LENGTH, entropy_coef=0.1, aux_loss_coef=0.1,
    )  # fmt: skip
    check_split(pickle.loads(pickle.dumps(objective)), step)


@pytest.mark.slow
@pytest.mark.parametrize("gating", list(GATES))
@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("level", list(LEVELS))
def test_the_gradient_does_not_depend_on_the_split_under_a_correction(level, mode, gating, step):
    bounds = {"ratio": (0.7, 1.3), "binary_kl": (0.0, 0.05), "tv": (0.0, 0.05)}[gating]
    choice = {"correction_level": level, "correction_mode": mode, "correction_gating": gating}
    if (gating != "ratio" and mode != "mask") or (level, mode) == ("token", "gate"):
        with pytest.raises(ConfigError, match="mask"):
            replace(PLAIN, **choice, correction_bounds=bounds)
        return
    check_split(replace(PLAIN, **choice, correction_bounds=bounds), step)


@pytest.mark.slow
@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("estimator", list(KL_ESTIMATORS))
def test_the_gradient_does_not_depend_on_the_split_under_a_kl(estimator, unbiased, step):
    objective = replace(PLAIN, correction_level="token", kl_coef=1.0, kl_estimator=estimator, has_unbiased_kl=unbiased)
    check_split(objective, step)


@pytest.mark.slow
@pytest.mark.parametrize(("micro", "world_size"), [(1, 1), (2, 1), (8, 1), (1, 2), (2, 2), (8, 2)])
def test_the_six_splits(micro, world_size, step):
    """R36: the same eight sequences as 1 x 8, 2 x 4 and 8 x 1 micro-batches, on one rank and on two."""
    objective, totals = replace(PLAIN, correction_level="token"), count_totals(step)
    whole, *_ = gradient(objective, [step], totals)
    size = step.num_sequences // micro
    groups = [step.select(range(start, start + size)) for start in range(0, 8, size)]
    ranks = [groups[rank::world_size] or [step.select([])] for rank in range(world_size)]
    assert (sum(gradient(objective, parts, totals)[0] for parts in ranks) - whole).abs().max() < 1e-12


def two_tokens(make_batch, policy, old, rollout, **changes):
    """One sequence of two action tokens with advantages 1 and -2."""
    batch = make_batch([[0, 1, 1]])
    made = replace(
        batch,
        rollout_logprobs=np.array([np.nan, *rollout], np.float32),
        advantages=np.array([0, 1, -2], np.float32),
        old_logprobs=None if old is None else np.array([0, *old], np.float32),
        **changes,
    )
    logprobs = torch.tensor([0.0, *policy], dtype=torch.float64, requires_grad=True)
    return made, ActionLogprobs(logprobs, torch.zeros(3, dtype=torch.float64))


def test_decoupled_ppo_by_hand(make_batch):
    """Ratio current / proximal 1.5 clips at 1.2; proximal / engine 0.5 weighs. Second token: 1.1 and 1."""
    old, rollout = [-2.0, -1.0], [-2.0 + math.log(2), -1.0]
    batch, scored = two_tokens(make_batch, [-2 + math.log(1.5), -1 + math.log(1.1)], old, rollout)
    loss, metrics = replace(PLAIN, correction_level="token")(scored, batch, count_totals(batch))
    assert loss.item() == pytest.approx((-0.5 * 1.2 + 2.2) / 2)
    loss.backward()
    assert scored.logprobs_N.grad.tolist() == pytest.approx([0, 0, 1.1])
    shown = values(metrics)
    assert shown["policy/ratio_mean"] == pytest.approx(1.3)
    assert shown["mismatch/ratio_mean"] == pytest.approx(0.75)


def test_coupled_ppo_by_hand(make_batch):
    """R44: the ratio's denominator is the engine, whatever the learner would say: 0.75 and 1.1, no weight."""
    old, rollout = [-2.0, -1.0], [-2.0 + math.log(2), -1.0]
    batch, scored = two_tokens(make_batch, [-2 + math.log(1.5), -1 + math.log(1.1)], old, rollout)
    coupled = replace(PLAIN, uses_rollout_as_old=True)
    for each in (batch, replace(batch, old_logprobs=None)):
        loss, metrics = coupled(scored, each, count_totals(batch, 9))
        assert loss.item() == pytest.approx((-0.75 + 2.2) / 2)
        assert values(metrics)["policy/ratio_max"] == pytest.approx(1.1)
    with pytest.raises(ConfigError, match="count the same difference twice"):
        replace(coupled, correction_level="token")


def test_shaped_tokens_have_the_learners_own_denominator_by_hand(make_batch):
    """A grammar left 0.01 of the mass for the first token: current / proximal 1.5 clips at 1.2, and the weight is 1."""
    old, rollout = [-2.0, -1.0], [-2.0 - math.log(0.01), -1.0]
    policy = [-2 + math.log(1.5), -1 + math.log(1.1)]
    batch, scored = two_tokens(make_batch, policy, old, rollout, is_shaped=np.array([False, True, False]))
    corrected, coupled = replace(PLAIN, correction_level="token"), replace(PLAIN, uses_rollout_as_old=True)
    for objective in (corrected, coupled, replace(PLAIN, correction_level="seq")):
        loss, metrics = objective(scored, batch, count_totals(batch))
        assert loss.item() == pytest.approx((-1.2 + 2.2) / 2)
        assert values(metrics)["mismatch/shaped"] == 0.5
        assert values(metrics)["mismatch/kl_k3"] == pytest.approx(0, abs=1e-6)
    single = replace(batch, old_logprobs=None)  # one update: the ratio is 1 with the policy's gradient
    for objective in (corrected, coupled):
        scored.logprobs_N.grad = None
        objective(scored, single, count_totals(single))[0].backward()
        assert scored.logprobs_N.grad[1].item() == pytest.approx(-1 / 2)
    _, metrics = coupled(scored, replace(single, is_shaped=None), count_totals(batch))
    assert values(metrics)["policy/ratio_mean"] == pytest.approx((0.015 + 1.1) / 2)  # as if nearly never sampled


def test_without_old_logprobs_the_correction_carries_the_staleness(make_batch):
    """The ratio is 1 with the policy's gradient, and current / engine weighs it: 0.75 and 1.1."""
    batch, scored = two_tokens(
        make_batch, [-2 + math.log(1.5), -1 + math.log(1.1)], None, [-2.0 + math.log(2), -1.0]
    )  # fmt: skip
    loss, metrics = replace(PLAIN, correction_level="token")(scored, batch, count_totals(batch, 9))
    loss.backward()
    assert scored.logprobs_N.grad.tolist() == pytest.approx([0, -0.75 / 2, 2.2 / 2])
    assert "mismatch/kl_k3/lag_6" in values(metrics)


def test_stale_tokens_are_never_trained_uncorrected(make_batch):
    """R44: recomputed old logprobs do not help, they are those of a policy that never sampled the tokens."""
    batch, scored = two_tokens(make_batch, [-2.0, -1.0], [-2.0, -1.0], [-3.0, -1.0])
    PLAIN(scored, batch, count_totals(batch))
    PLAIN(scored, batch, count_totals(batch, 3))
    for each in (batch, replace(batch, old_logprobs=None)):
        with pytest.raises(LearnerError, match=r"weights 3 sampled are to train weights 4.*is_correction_level"):
            PLAIN(scored, each, count_totals(batch, 4))
    mixed = replace(batch, versions=np.array([-1, 2, 3], np.int32))
    with pytest.raises(LearnerError, match="weights 2 sampled"):
        PLAIN(scored, mixed, count_totals(mixed))


def test_unknown_logprobs_of_the_engine_teach_nothing(make_batch):
    batch, scored = two_tokens(make_batch, [-2.0, -1.0], [-2.0, -1.0], [np.nan, -1.0])
    for objective in (replace(PLAIN, correction_level="token"), replace(PLAIN, uses_rollout_as_old=True)):
        loss, _ = objective(scored, batch, count_totals(batch))
        scored.logprobs_N.grad = None
        loss.backward()
        assert loss.item() == pytest.approx(1)
        assert scored.logprobs_N.grad.tolist() == pytest.approx([0, 0, 1])


def test_entropy_is_subtracted_with_its_gradient_or_only_measured(make_batch):
    batch, scored = two_tokens(make_batch, [-2.0, -1.0], None, [-2.0, -1.0])
    entropy = torch.tensor([math.nan, 0.5, 1.5], dtype=torch.float64, requires_grad=True)
    scored, totals = replace(scored, entropy_N=entropy), count_totals(batch)
    for coef in (None, 0.0):
        objective = replace(PLAIN, entropy_coef=coef)
        assert not objective.needs_entropy_gradient
        assert not objective.needs_all_sequences
        plain, metrics = objective(scored, batch, totals)
        assert values(metrics)["policy/entropy"] == 1
    objective = replace(PLAIN, entropy_coef=0.1)
    assert objective.needs_entropy_gradient
    assert objective.needs_all_sequences
    loss, _ = objective(scored, batch, totals)
    assert loss.item() == pytest.approx(plain.item() - 0.1)
    loss.backward()
    assert entropy.grad.tolist() == pytest.approx([0, -0.05, -0.05])
    with pytest.raises(AssertionError):
        objective(replace(scored, entropy_N=entropy.detach()), batch, totals)


def test_the_load_balancing_loss_is_shared_out_by_tokens(make_batch):
    """Parts of 3 and 9 tokens with losses 1 and 2: 0.1 * (3 * 1 + 9 * 2) / 12."""
    batch = make_batch([[0, 1, 1], [0] * 7 + [1, 1]])
    objective, totals = replace(PLAIN, aux_loss_coef=0.1), count_totals(batch)
    assert objective.needs_all_sequences
    added, metrics = 0.0, []
    for sequence, aux in ((0, 1.0), (1, 2.0)):
        part = batch.select([sequence])
        scored = ActionLogprobs(torch.zeros(part.num_tokens), torch.zeros(part.num_tokens))
        balance = torch.tensor(aux, requires_grad=True)
        loss, part_metrics = objective(scored, part, totals, aux_loss=balance)
        without, _ = PLAIN(scored, part, totals)
        loss.backward()
        assert balance.grad.item() == pytest.approx(0.1 * part.num_tokens / 12)
        added += (loss - without).item()
        metrics.append(part_metrics)
    assert added == pytest.approx(0.1 * 21 / 12)
    assert values(merge(metrics))["policy/aux_loss"] == pytest.approx(21 / 12)
    with pytest.raises(LearnerError, match="no load-balancing loss"):
        objective(scored, part, totals)


@pytest.mark.parametrize("loss", list(POLICY_LOSSES))
def test_a_part_without_actions_runs_backward(loss, make_batch):
    objective = Objective(
        loss, PolicyOptions(), "token-mean", "seq", "mask", (0.5, 2.0), kl_coef=0.1, entropy_coef=0.1,
        has_unbiased_kl=True,
    )  # fmt: skip
    empty = make_batch([[0, 0]]).with_ref_logprobs([0, 0])
    for part in (empty, empty.select([])):
        logprobs = torch.full((part.num_tokens,), math.nan, dtype=torch.float64, requires_grad=True)
        loss_value, metrics = objective(ActionLogprobs(logprobs, logprobs * 1), part, count_totals(empty))
        loss_value.backward()
        assert loss_value.item() == 0
        assert (logprobs.grad == 0).all()
        assert values(metrics) == {}
