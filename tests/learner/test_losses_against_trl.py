"""The clipped loss, its aggregation and k3 give the numbers of TRL's own trainer."""

import sys
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from turngym.learner.batch import concatenate
from turngym.learner.kl import token_kl
from turngym.learner.losses import (
    POLICY_LOSSES,
    PolicyInputs,
    PolicyOptions,
    aggregate,
    aggregation_weights,
    count_totals,
)


@pytest.mark.slow
@pytest.mark.parametrize(("loss_type", "mode"), [("grpo", "seq-mean-token-mean"), ("bnpo", "token-mean")])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_equals_trl(loss_type, mode, beta, make_batch, monkeypatch):
    if "vllm" not in sys.modules:
        monkeypatch.setitem(sys.modules, "vllm", None)  # TRL imports it where it finds it, which takes half a minute
    from trl import GRPOTrainer

    rng = np.random.default_rng(0)
    shape, lengths = (4, 9), [3, 9, 1, 6]
    mask = np.arange(9) < np.array(lengths)[:, None]
    policy, old, reference, weights = (torch.tensor(rng.normal(-2, 0.4, shape)) for _ in range(4))
    weights, advantages = (weights + 3).clamp(0.2, 2), torch.tensor(rng.normal(size=shape[0]))
    theirs_policy, ours_policy = policy.clone().requires_grad_(), policy.clone().requires_grad_()

    trainer = SimpleNamespace(
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, loss_type=loss_type,
        importance_sampling_level="token", beta=beta, epsilon_low=0.2, epsilon_high=0.3, use_vllm=True,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False), model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(gather=lambda x: x, reduce=lambda x, reduction: x),
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
        },
    )  # fmt: skip

    batch = concatenate([make_batch([[0] + [1] * length], attempts=[row]) for row, length in enumerate(lengths)])
    flat = {"policy": ours_policy, "old": old, "reference": reference, "weights": weights}
    flat["advantages"] = advantages[:, None].expand(shape)
    picked = {name: torch.nn.functional.pad(x, (1, 0))[np.pad(mask, ((0, 0), (1, 0)), constant_values=True)]
              for name, x in flat.items()}  # fmt: skip
    is_action = torch.tensor(batch.is_action)
    made = PolicyInputs(
        picked["policy"], picked["old"], picked["advantages"], picked["weights"], is_action,
        torch.tensor(batch.sequence_of_token), batch.num_sequences,
    )  # fmt: skip
    token_weights = torch.tensor(aggregation_weights(mode, batch, count_totals(batch)))
    kl = token_kl("k3", picked["policy"], picked["reference"], is_action)
    loss = POLICY_LOSSES["ppo"](made, PolicyOptions(eps_high=0.3)).loss_N
    ours = aggregate(loss + beta * kl, token_weights, is_action)
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-12)
    ours.backward()
    theirs.backward()
    assert torch.allclose(ours_policy.grad, theirs_policy.grad, atol=1e-12)
