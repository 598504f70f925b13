"""Action logprobs: the distribution sampled from, exact in chunks, and alive when there is nothing to score."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from turngym.errors import ConfigError
from turngym.learner.models import logprobs as logprobs_module
from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs, token_logprobs


@pytest.fixture
def model():
    return tiny_model(PACKED)


def tiny_model(attention):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)


def one_by_one(model, batch):
    """Plain reference: each sequence alone, plain log-softmax, 0 off actions."""
    pieces = []
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end]).long()
        temperatures = torch.tensor(batch.temperatures[start:end])
        scores = (model(ids[None], use_cache=False).logits[0, :-1] / temperatures[1:, None]).log_softmax(-1)
        picked = torch.cat([torch.zeros(1), scores.gather(-1, ids[1:, None])[:, 0]])
        pieces.append(picked * torch.tensor(batch.is_action[start:end]))
    return torch.cat(pieces)


def test_reported_numbers_of_temperature():
    """R29: logits (2, 1, 0) at T = 0.6 give -0.2026, neither the raw -0.4076 nor -0.4076 / T = -0.6793."""
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    logprobs, _ = token_logprobs(logits, torch.tensor([0, 0]), torch.tensor([0.6, 1.0]))
    assert logprobs.tolist() == pytest.approx([-0.2026, -0.4076], abs=5e-5)


def test_entropy_by_hand_and_with_an_impossible_token():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -math.inf, -math.inf]])
    logprobs, entropy = token_logprobs(logits, torch.tensor([1, 0]), torch.ones(2))
    assert entropy.tolist() == pytest.approx([math.log(4), math.log(2)])
    assert logprobs.tolist() == pytest.approx([-math.log(4), -math.log(2)])


def test_an_impossible_token_has_no_slope_at_any_temperature():
    """At T = 1/2 the gradient of the entropy is doubled; the lowest float, doubled, is -inf, and 0 * -inf is NaN."""
    logits = torch.tensor([[0.0, 0.5, -math.inf]], requires_grad=True)
    _, entropy = token_logprobs(logits, torch.tensor([0]), torch.tensor([0.5]), with_entropy_grad=True)
    entropy.sum().backward()
    possible = torch.tensor([0.0, 1.0])  # logits / T
    logprobs = possible.log_softmax(-1)
    slopes = -logprobs.exp() * (logprobs + entropy.item()) / 0.5
    assert logits.grad[0].tolist() == pytest.approx([*slopes.tolist(), 0.0], abs=1e-6)


@pytest.mark.parametrize("rows_per_chunk", [1, 3, 100])
def test_chunks_equal_plain_autograd(monkeypatch, rows_per_chunk):
    monkeypatch.setitem(logprobs_module.CHUNK_ELEMENTS, "cpu", rows_per_chunk * 11)
    torch.manual_seed(0)
    logits = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    targets, temperatures, weights = torch.randint(0, 11, (7,)), torch.rand(7).double() + 0.5, torch.randn(7).double()
    before = logits.detach().clone()
    logprobs, entropy = token_logprobs(logits, targets, temperatures)
    (grad,) = torch.autograd.grad((logprobs * weights).sum(), logits)

    plain = (logits / temperatures[:, None]).log_softmax(-1)
    (plain_grad,) = torch.autograd.grad((plain.gather(-1, targets[:, None])[:, 0] * weights).sum(), logits)
    assert torch.allclose(logprobs, plain.gather(-1, targets[:, None])[:, 0], atol=1e-14)
    assert torch.allclose(entropy, -(plain.exp() * plain).sum(-1), atol=1e-14)
    assert torch.allclose(grad, plain_grad, atol=1e-14)
    assert torch.equal(logits, before)
    assert not entropy.requires_grad


def test_half_precision_logits_are_normalised_in_float32():
    logits = torch.randn(3, 1000).bfloat16().requires_grad_()
    logprobs, _ = token_logprobs(logits, torch.tensor([1, 2, 3]), torch.ones(3))
    assert logprobs.dtype == torch.float32
    assert torch.allclose(logprobs, logits.float().log_softmax(-1)[range(3), [1, 2, 3]], atol=1e-6)
    logprobs.sum().backward()
    assert logits.grad.dtype == torch.bfloat16


@pytest.mark.slow
def test_equals_each_sequence_alone(model, make_batch):
    batch = make_batch([[0, 0, 1, 1, 0, 1], [0, 1], [0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 0]])
    temperatures = np.where(batch.is_action, np.linspace(0.3, 1.5, batch.num_tokens), 1).astype(np.float32)
    batch = dataclasses.replace(batch, temperatures=temperatures)
    packed = action_logprobs(model, batch, "cpu")
    plain_model = tiny_model("eager")
    plain = one_by_one(plain_model, batch)
    assert torch.allclose(packed.logprobs_N, plain, atol=1e-5)
    assert (packed.logprobs_N[~torch.tensor(batch.is_action)] == 0).all()
    assert (packed.entropy_N[torch.tensor(batch.is_action)] > 0).all()

    packed.logprobs_N.sum().backward()
    plain.sum().backward()
    for one, other in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=2e-5)


@pytest.mark.parametrize("masks", [[], [[0, 0, 0], [0]]])
def test_nothing_to_score_still_reaches_every_parameter(model, make_batch, masks):
    batch = make_batch(masks)
    result = action_logprobs(model, batch, "cpu")
    assert result.logprobs_N.shape == (batch.num_tokens,)
    result.logprobs_N.sum().backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert (parameter.grad == 0).all(), path


def test_read_only_arrays_are_taken_quietly(model, make_batch, recwarn):
    batch = make_batch([[0, 1, 1]])
    for array in (batch.token_ids, batch.is_action, batch.temperatures, batch.starts):
        array.flags.writeable = False
    action_logprobs(model, batch, "cpu")
    assert not [w for w in recwarn if "writable" in str(w.message)]


def test_a_model_without_packed_attention_is_refused(make_batch):
    with pytest.raises(ConfigError, match="packed attention ran 0 times"):
        action_logprobs(tiny_model("sdpa"), make_batch([[0, 1, 1]]), "cpu")
