"""Optimisers: which parameter gets what, Muon's step by hand and against torch's, and what is refused."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from turngym.errors import ConfigError
from turngym.learner.options import ActorOptions, CriticOptions, MuonOptions
from turngym.learner.ranks.muon import Muon, orthogonalize
from turngym.learner.ranks.optimizers import (
    OptimizerConfig,
    hidden_matrices,
    is_offloaded,
    make_optimizer,
    optimizer_config,
    rate_shares,
)

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 40, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip


def muon_of(matrix, **changes):
    own = {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.9, "nesterov": True, "num_steps": 5} | changes
    return Muon([{"params": [matrix], **own}], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)


def test_one_number_by_hand():
    """A 4 x 1 matrix has one singular value: 1 after normalising, then 0.701 after one iteration, times sqrt(4)."""
    matrix = torch.tensor([[3.0], [0.0], [4.0], [0.0]])
    once = 3.4445 - 4.7750 + 2.0315
    assert orthogonalize(matrix, 1).flatten().tolist() == pytest.approx([0.6 * once * 2, 0, 0.8 * once * 2, 0])
    assert orthogonalize(matrix.T, 1).flatten().tolist() == pytest.approx([0.6 * once, 0, 0.8 * once, 0])
    assert not orthogonalize(torch.zeros(2, 3), 5).any()


def test_a_batch_of_experts_is_each_expert_alone():
    experts = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    together = orthogonalize(experts, 5)
    for expert, one in zip(experts, together, strict=True):
        assert torch.allclose(orthogonalize(expert, 5), one, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_three_steps_equal_torchs_muon(shape, nesterov):
    """torch iterates in bfloat16, which is good to about 1%."""
    generator = torch.Generator().manual_seed(1)
    mine, theirs = (torch.nn.Parameter(torch.ones(shape)) for _ in range(2))
    ours = muon_of(mine, nesterov=nesterov, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, momentum=0.9, nesterov=nesterov)
    for _ in range(3):
        mine.grad = torch.randn(shape, generator=generator)
        theirs.grad = mine.grad.clone()
        ours.step()
        reference.step()
    assert torch.allclose(mine, theirs, atol=0.01)
    assert not torch.allclose(mine, torch.ones(shape), atol=0.1)


def test_momentum_by_hand():
    """Gradients 1 then -1 at momentum 0.9: the buffer 0.1, then -0.01, whose sign alone counts in a 1 x 1 matrix."""
    number = torch.nn.Parameter(torch.zeros(1, 1))
    optimizer = muon_of(number, nesterov=False, num_steps=0, lr=1.0)
    number.grad = torch.ones(1, 1)
    optimizer.step()
    assert optimizer.state[number]["momentum"].item() == pytest.approx(0.1)
    assert number.item() == pytest.approx(-1)
    number.grad = -torch.ones(1, 1)
    optimizer.step()
    assert optimizer.state[number]["momentum"].item() == pytest.approx(-0.01)
    assert number.item() == pytest.approx(0)


@pytest.mark.parametrize("is_tied", [True, False])
def test_muon_takes_the_matrices_of_layers(is_tied):
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, tie_word_embeddings=is_tied))
    chosen = {id(matrix) for matrix in hidden_matrices(model)}
    names = {name.rpartition("layers.0.")[2] for name, p in model.named_parameters() if id(p) in chosen}
    projections = {f"self_attn.{x}_proj.weight" for x in "qkvo"} | {
        f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")
    }
    assert names == projections


def test_muon_takes_fused_experts_and_leaves_frozen_ones():
    config = Qwen3MoeConfig(**SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=4, head_dim=4)
    model = AutoModelForCausalLM.from_config(config)
    assert {len(matrix.shape) for matrix in hidden_matrices(model)} == {2, 3}
    model.requires_grad_(False)
    assert hidden_matrices(model) == []


def test_rates_keep_their_proportion_and_adamw_has_the_rest():
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES))
    optimizer = make_optimizer(OptimizerConfig("muon", lr=1e-3, muon_lr=0.02), model, CPU)
    assert rate_shares(optimizer) == [pytest.approx(20), 1.0]
    counts = [len(group["params"]) for group in optimizer.param_groups]
    assert counts == [7, len(list(model.parameters())) - 7]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for group, share in zip(optimizer.param_groups, rate_shares(optimizer), strict=True):
        group["lr"] = 1e-3 * share
    optimizer.step()
    changes = {name: (before[name] - p.detach()).abs().max().item() for name, p in model.named_parameters()}
    assert changes["model.norm.weight"] == pytest.approx(1e-3, rel=1e-3)  # Adam's first step
    assert changes["model.embed_tokens.weight"] == pytest.approx(1e-3, rel=1e-2)
    assert changes["model.layers.0.mlp.up_proj.weight"] > 1.5e-3
    assert [len(group["params"]) for group in optimizer.param_groups] == counts


def test_adam_is_torchs():
    model = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(OptimizerConfig(eps=1e-6, weight_decay=0.1, betas=(0.8, 0.9)), model, CPU)
    assert type(optimizer) is torch.optim.AdamW
    assert {key: optimizer.defaults[key] for key in ("betas", "eps", "weight_decay")} == {
        "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1,
    }  # fmt: skip
    assert rate_shares(optimizer) == [1.0]


def test_options_of_actor_and_critic():
    actor = optimizer_config(ActorOptions(optim="muon", muon=MuonOptions(lr=0.01, ns_steps=3)), offload=False)
    assert (actor.kind, actor.muon_lr, actor.ns_steps, actor.lr) == ("muon", 0.01, 3, 1e-6)
    assert optimizer_config(CriticOptions(), offload=True).lr == 9e-6


def test_offloading_means_nothing_without_a_gpu(monkeypatch):
    config = OptimizerConfig(offload=True)
    assert not is_offloaded(config, CPU)
    assert is_offloaded(config, torch.device("cuda", 0))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert type(make_optimizer(config, torch.nn.Linear(2, 2), CPU)) is torch.optim.AdamW
    with pytest.raises(ConfigError, match=r"no C\+\+ compiler 'no-such-compiler'; install"):
        make_optimizer(config, torch.nn.Linear(2, 2), torch.device("cuda", 0))


def test_bad_combinations_are_refused():
    with pytest.raises(ConfigError, match="leave one of them out"):
        OptimizerConfig("muon", offload=True)
    with pytest.raises(ConfigError, match="must be positive"):
        OptimizerConfig("muon", lr=0.0)
    assert math.isclose(OptimizerConfig("muon").muon_lr, 0.02)
