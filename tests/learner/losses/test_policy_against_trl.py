"""Losses, aggregations, k3 and corrections give the numbers of TRL's own trainer."""

import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from turngym.learner.batch import concatenate
from turngym.learner.losses.aggregations import aggregate, aggregation_weights, count_totals
from turngym.learner.losses.kl import token_kl, unbiased_token_kl
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyInputs, PolicyOptions

MAX_LENGTH = 11

# TRL's loss, its level of the ratio and its epsilon_high, and what they are called here.
CASES = [
    ("grpo", "token", 0.3, "ppo", "seq-mean-token-mean", {"eps_high": 0.3}),
    ("bnpo", "token", 0.3, "ppo", "token-mean", {"eps_high": 0.3}),
    ("dr_grpo", "token", 0.3, "ppo", "seq-mean-token-sum-norm", {"eps_high": 0.3}),
    ("grpo", "sequence", 0.1, "gspo", "seq-mean-token-mean", {"eps_high": 0.1}),
    ("cispo", "token", 1.3, "cispo", "token-mean", {"eps_low": 1.0, "eps_high": 0.3}),
    ("sapo", "token", 0.3, "sapo", "seq-mean-token-mean", {"gate_positive": 1.5, "gate_negative": 2.5}),
]


def flat(x, mask):
    """Lay the rows end to end, each with a token of context before it."""
    return torch.nn.functional.pad(x, (1, 0))[np.pad(mask, ((0, 0), (1, 0)), constant_values=True)]


@pytest.mark.slow
@pytest.mark.parametrize(("loss_type", "level", "epsilon_high", "name", "mode", "options"), CASES)
@pytest.mark.parametrize(("beta", "unbiased"), [(0.0, False), (0.1, False), (0.1, True)])
def test_equals_trl(loss_type, level, epsilon_high, name, mode, options, beta, unbiased, make_batch, monkeypatch):
    if level == "sequence" and unbiased:
        pytest.skip("TRL weighs the KL by the sequence's ratio there, OpenRLHF and ours by the token's")
    if "vllm" not in sys.modules:
        monkeypatch.setitem(sys.modules, "vllm", None)  # TRL imports it where it finds it, which takes half a minute
    from trl import GRPOTrainer

    rng = np.random.default_rng(0)
    shape, lengths = (4, 9), [3, 9, 1, 6]
    mask = np.arange(9) < np.array(lengths)[:, None]
    policy, old, reference = (torch.tensor(rng.normal(-2, 0.4, shape)) for _ in range(3))
    weights = torch.tensor(rng.uniform(0.2, 2, (4, 1) if level == "sequence" else shape))
    advantages = torch.tensor(rng.normal(size=shape[0]))
    theirs_policy, ours_policy = policy.clone().requires_grad_(), policy.clone().requires_grad_()

    trainer = SimpleNamespace(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, loss_type=loss_type,
        importance_sampling_level=level, beta=beta, epsilon_low=0.2, epsilon_high=epsilon_high, use_vllm=True,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=unbiased, sapo_temperature_pos=1.5,
                             sapo_temperature_neg=2.5, steps_per_generation=1),
        model=SimpleNamespace(training=True), max_completion_length=MAX_LENGTH,
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *a, **k: (theirs_policy, torch.zeros(shape), None),
    )  # fmt: skip
    none = torch.zeros(4, 0, dtype=torch.int64)
    theirs = GRPOTrainer._compute_loss(
        trainer,
        None,
        {
            "prompt_ids": none, "prompt_mask": none, "completion_ids": torch.zeros(shape, dtype=torch.int64),
            "completion_mask": torch.tensor(mask).long(), "advantages": advantages, "old_per_token_logps": old,
            "ref_per_token_logps": reference, "importance_sampling_ratio": weights,
            "num_items_in_batch": torch.tensor(sum(lengths)),
        },
    )  # fmt: skip

    batch = concatenate([make_batch([[0] + [1] * length], attempts=[row]) for row, length in enumerate(lengths)])
    is_action = torch.tensor(batch.is_action)
    ours_N, old_N, reference_N, weights_N, advantages_N = (
        flat(x, mask) for x in (ours_policy, old, reference, weights.expand(shape), advantages[:, None].expand(shape))
    )
    made = PolicyInputs(
        ours_N, old_N, advantages_N, weights_N, is_action, torch.tensor(batch.sequence_of_token), batch.num_sequences,
    )  # fmt: skip
    token_weights = torch.tensor(aggregation_weights(mode, batch, count_totals(batch), MAX_LENGTH))
    if unbiased:
        kl = unbiased_token_kl("k3", ours_N, reference_N, old_N, is_action)
    else:
        kl = token_kl("k3", ours_N, reference_N, is_action)
    loss = POLICY_LOSSES[name](made, PolicyOptions(**options)).loss_N
    ours = aggregate(loss + beta * kl, token_weights, is_action)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    ours.backward()
    theirs.backward()
    assert theirs_policy.grad.abs().max() > 1e-3
    assert torch.allclose(ours_policy.grad, theirs_policy.grad, atol=1e-12)
