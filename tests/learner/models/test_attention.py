"""Packed attention equals each sequence alone, whatever the model's attention looks like."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3NextConfig,
)

from turngym.errors import ConfigError
from turngym.learner.models.attention import PACKED, check_context, check_packable, packed_attention, packed_calls

LENGTHS = [7, 23, 1, 12, 23, 2]
SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "llama": LlamaConfig(**SMALL),
    "llama-mha": LlamaConfig(**SMALL | {"num_key_value_heads": 4}),
    "qwen2": Qwen2Config(**SMALL),
    "qwen2-window": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    "mistral-window": MistralConfig(**SMALL, sliding_window=5),
    "gemma3-window": Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
}


def packed_inputs(lengths):
    starts = torch.tensor([0, *lengths]).cumsum(0)
    cu_seq_lens = starts.int()
    positions = torch.cat([torch.arange(length) for length in lengths])
    options = {"cu_seq_lens_q": cu_seq_lens, "cu_seq_lens_k": cu_seq_lens}
    options |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    return {"position_ids": positions[None], "use_cache": False, **options}


def twins(config):
    """The same weights with plain attention and with packed attention."""
    torch.manual_seed(0)
    plain, packed = (
        AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation=name, dtype=torch.float32)
        for name in ("eager", PACKED)
    )
    packed.load_state_dict(plain.state_dict())
    return plain, packed


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_equals_each_sequence_alone(name):
    plain, packed = twins(CONFIGS[name])
    ids = torch.randint(0, 61, (sum(LENGTHS),))
    alone = torch.cat([plain(piece[None], use_cache=False).logits[0] for piece in ids.split(LENGTHS)])
    together = packed(ids[None], **packed_inputs(LENGTHS)).logits[0]
    assert (alone - together).abs().max() < 1e-5

    weights = torch.randn(alone.shape)
    (alone.log_softmax(-1) * weights).sum().backward()
    (together.log_softmax(-1) * weights).sum().backward()
    for (path, one), other in zip(plain.named_parameters(), packed.parameters(), strict=True):
        scale = one.grad.abs().max().clamp(min=1.0)
        assert (one.grad - other.grad).abs().max() / scale < 1e-5, path


def test_a_sliding_window_matters_and_is_kept():
    """The window test above would pass with any window if five tokens back made no difference."""
    _, packed = twins(CONFIGS["mistral-window"])
    _, wide = twins(MistralConfig(**SMALL, sliding_window=None))
    ids = torch.randint(0, 61, (1, 23))
    difference = packed(ids, **packed_inputs([23])).logits - wide(ids, **packed_inputs([23])).logits
    assert difference[0, :5].abs().max() < 1e-6
    assert difference[0, 5:].abs().max() > 1e-3


def test_a_token_does_not_depend_on_its_neighbours_even_when_they_are_broken():
    _, packed = twins(CONFIGS["llama"])
    with torch.no_grad():
        packed.model.embed_tokens.weight[60] = torch.nan
        ids = torch.randint(0, 60, (30,))
        good = packed(ids[None], **packed_inputs([10, 20])).logits[0]
        ids[10:] = 60
        beside_nan = packed(ids[None], **packed_inputs([10, 20])).logits[0]
    assert torch.equal(good[:10], beside_nan[:10])
    assert beside_nan[10:].isnan().all()


@pytest.mark.slow
def test_gradient_checkpointing_gives_the_same_gradient():
    _, packed = twins(CONFIGS["llama"])
    ids = torch.randint(0, 61, (1, sum(LENGTHS)))
    grads = []
    for _ in range(2):
        packed.zero_grad()
        packed.train()(ids, **packed_inputs(LENGTHS)).logits.square().mean().backward()
        grads.append(packed.model.layers[0].self_attn.q_proj.weight.grad.clone())
        packed.gradient_checkpointing_enable()
    assert torch.allclose(*grads, atol=1e-7)


@pytest.mark.slow
def test_half_precision_weights_and_autocast_agree():
    _, packed = twins(CONFIGS["llama"])
    ids = torch.randint(0, 61, (1, sum(LENGTHS)))
    exact = packed(ids, **packed_inputs(LENGTHS)).logits
    with torch.autocast("cpu", torch.bfloat16):
        cast = packed(ids, **packed_inputs(LENGTHS)).logits
    half = packed.bfloat16()(ids, **packed_inputs(LENGTHS)).logits
    assert (cast - exact).abs().max() < 0.05
    assert (half - exact).abs().max() < 0.05


def test_calls_are_counted_per_layer():
    _, packed = twins(CONFIGS["llama"])
    before = packed_calls()
    packed(torch.zeros(1, 3, dtype=torch.int64), **packed_inputs([3]))
    assert packed_calls() - before == 2


def test_without_sequence_starts_it_refuses():
    _, packed = twins(CONFIGS["llama"])
    with pytest.raises(ConfigError, match="no cu_seq_lens_q and max_length_q reached LlamaAttention"):
        packed(torch.zeros(1, 3, dtype=torch.int64), use_cache=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"softcap": 30.0}, "a softcap"),
        ({"s_aux": torch.zeros(4)}, "attention sinks"),
        ({"is_causal": False}, "not causal"),
        ({"dropout": 0.1}, "dropout"),
        ({"attention_mask": torch.zeros(1, 1, 3, 3)}, "a mask of its own"),
        ({"query_1HTD": torch.zeros(2, 4, 3, 8)}, "more than one row"),
        ({"key_1KTD": torch.zeros(1, 2, 5, 8)}, "a cache of keys"),
    ],
)
def test_what_would_not_be_exact_is_refused(changes, message):
    key = torch.zeros(1, 2, 3, 8)
    arguments = {"query_1HTD": torch.zeros(1, 4, 3, 8), "key_1KTD": key, "value_1KTD": key, "attention_mask": None}
    arguments |= {"cu_seq_lens_q": torch.tensor([0, 3], dtype=torch.int32), "max_length_q": 3}
    output, _ = packed_attention(torch.nn.Identity(), **arguments)
    assert output.shape == (1, 3, 4, 8)
    with pytest.raises(ConfigError, match=message):
        packed_attention(torch.nn.Identity(), **arguments | changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Gemma2Config(**SMALL, head_dim=8), "softcapping"),
        (Qwen3NextConfig(num_hidden_layers=4), "linear_attention"),
        (LlamaConfig(**SMALL, attention_dropout=0.1), "dropout"),
        (Gemma3TextConfig(**SMALL, use_bidirectional_attention=True), "not causal"),
        (
            LlamaConfig(**SMALL, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
            "dynamic rotary embeddings beyond 64 tokens",
        ),
        (
            Phi3Config(
                **SMALL,
                original_max_position_embeddings=32,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                },
            ),
            "longrope rotary embeddings beyond 32",
        ),
    ],
)
def test_models_that_cannot_be_packed_are_named_before_they_run(config, message):
    with pytest.raises(ConfigError, match=message):
        check_packable(config, max_tokens=100)


@pytest.mark.parametrize("name", CONFIGS)
def test_models_that_can_be_packed_pass(name):
    check_packable(CONFIGS[name], max_tokens=100)


def test_a_longer_context_than_the_models_is_refused():
    config = LlamaConfig(**SMALL)
    check_context(config, max_tokens=64)
    with pytest.raises(ConfigError, match=r"--data\.max_len 64 or less"):
        check_context(config, max_tokens=65)
    stretched = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    check_context(LlamaConfig(**SMALL, rope_parameters=stretched), max_tokens=256)


def test_sinks_are_seen_when_the_model_runs():
    config = GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    _, packed = twins(config)
    with pytest.raises(ConfigError, match="attention sinks"):
        packed(torch.zeros(1, 3, dtype=torch.int64), **packed_inputs([3]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_the_flash_kernel_equals_torchs_attention(name):
    config = CONFIGS[name]
    _, packed = twins(config)
    ids = torch.randint(0, 61, (1, sum(LENGTHS)))
    exact = packed(ids, **packed_inputs(LENGTHS)).logits
    exact.log_softmax(-1)[..., 0].sum().backward()
    grads = {path: p.grad.clone() for path, p in packed.named_parameters()}
    packed.zero_grad()
    packed.cuda()
    inputs = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in packed_inputs(LENGTHS).items()}
    with torch.autocast("cuda", torch.bfloat16):
        logits = packed(ids.cuda(), **inputs).logits
    assert (logits.cpu() - exact).abs().max() < 0.05
    logits.float().log_softmax(-1)[..., 0].sum().backward()
    for path, p in packed.named_parameters():
        assert (p.grad.cpu() - grads[path]).abs().max() < 0.05 * grads[path].abs().max().clamp(min=1), path
