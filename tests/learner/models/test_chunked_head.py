"""The output head in tiles: exact, whatever the tiles, and for what models do to their logits after it."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from turngym.errors import ConfigError
from turngym.learner.models import chunked_head
from turngym.learner.models import logprobs as logprobs_module
from turngym.learner.models.attention import PACKED
from turngym.learner.models.chunked_head import TILES, LogitScale, ScoringHead, head_logprobs
from turngym.learner.models.logprobs import action_logprobs

SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
MODELS = {
    "llama": {},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "gemma2": {"final_logit_softcapping": 0.05, "attn_logit_softcapping": None},
    "gemma3_text": {"final_logit_softcapping": None, "tie_word_embeddings": True},
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 4.0},
    "gpt_neox": {},
}


def make_model(kind, attention=PACKED, **options):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SIZES | MODELS[kind] | options))
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)


def plain(hidden, weight, bias, targets, temperatures, scale):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logprobs = (scale(logits) / temperatures[:, None]).log_softmax(-1)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.fixture
def problem():
    torch.manual_seed(1)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in ((7, 5), (11, 5), (11,))]
    return [*(t.requires_grad_() for t in tensors), torch.randint(0, 11, (7,)), torch.rand(7).double() + 0.5]


def test_by_hand():
    """Hidden 1 and weights (2, 1, 0) give the logits (2, 1, 0); R29's numbers at T = 0.6 and T = 1."""
    weight = torch.tensor([[2.0], [1.0], [0.0]])
    logprobs, entropy = head_logprobs(torch.ones(2, 1), weight, None, torch.tensor([0, 0]), torch.tensor([0.6, 1.0]))
    assert logprobs.tolist() == pytest.approx([-0.2026, -0.4076], abs=5e-5)
    assert entropy[1].item() == pytest.approx(-sum(p * math.log(p) for p in (0.66524, 0.24473, 0.09003)), abs=1e-4)


def test_why_top_p_is_refused():
    """R30: with the same policy on both sides the ratio is the mass that top-p keeps, 0.910, at every such token."""
    weight = torch.tensor([[0.665], [0.245], [0.090]]).log()
    learner, _ = head_logprobs(torch.ones(1, 1), weight, None, torch.tensor([0]), torch.ones(1))
    engine = math.log(0.665 / (0.665 + 0.245))  # the two likeliest reach 0.9
    assert (learner.item(), engine) == pytest.approx((-0.4080, -0.3137), abs=5e-5)
    assert math.exp(learner.item() - engine) == pytest.approx(0.910, abs=1e-4)


@pytest.mark.parametrize("tile", [(1, 1), (3, 4), (2, 100), (100, 100)])
@pytest.mark.parametrize("scale", [LogitScale(), LogitScale(0.25), LogitScale(1.5, 2.0)])
def test_values_and_gradients_equal_plain_autograd(monkeypatch, problem, tile, scale):
    monkeypatch.setitem(chunked_head.TILES, "cpu", tile)
    leaves = problem[:3]
    weights = torch.randn(2, 7).double()
    tiled = head_logprobs(*problem, scale, with_entropy_grad=True)
    whole = plain(*problem, scale)
    for one, other in zip(tiled, whole, strict=True):
        assert torch.allclose(one, other, atol=1e-13)
    mine, theirs = (
        torch.autograd.grad((w[0] * weights[0]).sum() + (w[1] * weights[1]).sum(), leaves) for w in (tiled, whole)
    )
    for one, other in zip(mine, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-13)


@pytest.mark.slow
def test_gradcheck(monkeypatch, problem):
    monkeypatch.setitem(chunked_head.TILES, "cpu", (3, 4))
    *leaves, targets, temperatures = problem

    def scored(hidden, weight, bias):
        return head_logprobs(hidden, weight, bias, targets, temperatures, LogitScale(0.7, 3.0), with_entropy_grad=True)

    assert torch.autograd.gradcheck(scored, leaves)


def test_the_entropy_is_detached_unless_asked(problem):
    _, entropy = head_logprobs(*problem)
    assert not entropy.requires_grad


def test_a_frozen_head_gets_no_gradient(problem):
    hidden, weight, bias, *rest = problem
    weight.requires_grad_(False)
    logprobs, _ = head_logprobs(hidden, weight, bias, *rest)
    logprobs.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_impossible_tokens_and_large_logits_stay_exact(monkeypatch):
    monkeypatch.setitem(chunked_head.TILES, "cpu", (1, 2))
    bias = torch.tensor([-math.inf, -math.inf, 5000.0, 5000.0, -math.inf], requires_grad=True)
    hidden, weight = torch.zeros(1, 3, requires_grad=True), torch.zeros(5, 3)
    logprobs, entropy = head_logprobs(hidden, weight, bias, torch.tensor([2]), torch.ones(1), with_entropy_grad=True)
    assert logprobs.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))
    (logprobs + entropy).sum().backward()
    assert bias.grad.tolist() == pytest.approx([0, 0, 0.5, -0.5, 0])


def test_half_precision_keeps_the_models_logits_and_its_gradients_dtype():
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 64).bfloat16().requires_grad_(), torch.randn(300, 64).bfloat16().requires_grad_()
    targets = torch.randint(0, 300, (9,))
    logprobs, _ = head_logprobs(hidden, weight, None, targets, torch.ones(9))
    assert logprobs.dtype == torch.float32
    expected = (hidden @ weight.T).float().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    assert torch.allclose(logprobs, expected, atol=1e-5)
    logprobs.sum().backward()
    assert weight.grad.dtype == hidden.grad.dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_models_score_as_their_own_logits_do(monkeypatch, make_batch, kind):
    monkeypatch.setitem(chunked_head.TILES, "cpu", (3, 16))
    batch = make_batch([[0, 0, 1, 1, 0, 1], [0, 1], [0, 1, 1, 1, 1, 1, 0]])
    temperatures = np.where(batch.is_action, np.linspace(0.3, 1.5, batch.num_tokens), 1).astype(np.float32)
    batch = dataclasses.replace(batch, temperatures=temperatures)
    model, alone = make_model(kind), make_model(kind, "eager")
    monkeypatch.setattr(logprobs_module, "_score_by_logits", None)  # may not be needed
    scored = action_logprobs(model, batch, "cpu", with_entropy_grad=True)

    pieces = []
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end]).long()
        logits = alone(ids[None], use_cache=False).logits[0, :-1]
        logprobs = (logits / torch.tensor(batch.temperatures[start + 1 : end, None])).log_softmax(-1)
        picked = torch.stack([logprobs.gather(-1, ids[1:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)])
        pieces += [torch.zeros(2, 1), picked * torch.tensor(batch.is_action[start + 1 : end])]
    expected = torch.cat(pieces, 1)
    assert torch.allclose(scored.logprobs_N, expected[0], atol=1e-5)
    assert torch.allclose(scored.entropy_N, expected[1], atol=1e-5)
    (scored.logprobs_N.sum() + 0.1 * scored.entropy_N.sum()).backward()
    (expected[0].sum() + 0.1 * expected[1].sum()).backward()
    for (path, one), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        if other.grad is not None:  # an expert that no token chose
            assert torch.allclose(one.grad, other.grad, atol=2e-5), path


def test_a_model_that_does_something_else_to_its_logits_gives_them_in_full(make_batch):
    """Its first call shows that the probe came back as something unknown; no later one tries again."""
    batch = make_batch([[0, 1, 1]])
    model = make_model("llama")
    head_calls = []
    model.lm_head.register_forward_hook(lambda head, inputs, output: head_calls.append(output.shape[-1]))
    forward = model.forward

    def strange(**arguments):
        output = forward(**arguments)
        output.logits = output.logits - output.logits.pow(2)
        return output

    model.forward = strange
    scored = action_logprobs(model, batch, "cpu")
    assert head_calls == [2 + len(chunked_head.PROBE), 50]
    logits = make_model("llama", "eager")(torch.tensor(batch.token_ids[None]).long()).logits[0, :-1]
    expected = (logits - logits.pow(2)).log_softmax(-1)[[0, 1], batch.token_ids[1:].tolist()]
    assert torch.allclose(scored.logprobs_N[1:], expected, atol=1e-5)
    action_logprobs(model, batch, "cpu")
    assert head_calls[2:] == [50]


def test_the_head_is_itself_again_after_the_call(make_batch):
    model = make_model("llama")
    action_logprobs(model, make_batch([[0, 1, 1]]), "cpu")
    with pytest.raises(ZeroDivisionError), ScoringHead(model.lm_head, LogitScale(), torch.ones(1), torch.ones(1)):
        raise ZeroDivisionError
    assert "forward" not in vars(model.lm_head)
    assert not model.lm_head._forward_hooks


def test_gradient_checkpointing_changes_nothing(make_batch):
    batch = make_batch([[0, 0, 1, 1, 0, 1], [0, 1, 1]])
    models = [make_model("qwen2"), make_model("qwen2")]
    models[1].gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for model in models:
        model.train()
        action_logprobs(model, batch, "cpu").logprobs_N.sum().backward()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.slow
def test_the_load_balancing_loss_of_packed_experts(make_batch):
    """Against transformers' own from one row per sequence: experts do not look at neighbours, so a mean is a mean."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    batch = make_batch([[0, 0, 1, 1], [0, 1], [0, 1, 1, 1, 0]])
    model, alone = make_model("qwen3_moe"), make_model("qwen3_moe", "eager")
    scored = action_logprobs(model, batch, "cpu", with_aux_loss=True)
    layers = [[], []]
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        ids = torch.tensor(batch.token_ids[start:end]).long()[None]
        for layer, router in zip(layers, alone(ids, output_router_logits=True).router_logits, strict=True):
            layer.append(router)
    expected = load_balancing_loss_func(tuple(torch.cat(layer) for layer in layers), 4, 2)
    assert scored.aux_loss.item() == pytest.approx(expected.item(), rel=1e-5)
    scored.aux_loss.backward()
    assert model.model.layers[0].mlp.gate.weight.grad.abs().sum() > 0
    assert action_logprobs(model, batch, "cpu").aux_loss is None
    empty = action_logprobs(model, make_batch([]), "cpu", with_aux_loss=True)
    assert empty.aux_loss.item() == 0
    assert empty.aux_loss.requires_grad


def test_a_model_without_experts_has_no_load_balancing_loss(make_batch):
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no load-balancing loss"):
        action_logprobs(make_model("llama"), make_batch([[0, 1]]), "cpu", with_aux_loss=True)


@pytest.mark.parametrize("with_entropy_grad", [False, True])
def test_what_a_gpu_calculates_is_what_a_cpu_does(problem, monkeypatch, with_entropy_grad):
    """The form that is fused there, uncompiled; the compiled one is tested on a GPU."""
    hidden, weight, bias, targets, temperatures = problem
    monkeypatch.setitem(chunked_head.TILES, "cpu", (3, 4))
    pull, gradients = chunked_head._pull, []
    for is_fused in (False, True):
        monkeypatch.setattr(chunked_head, "_pull", lambda *args, fused=is_fused: pull(*args[:-1], fused))
        logprobs, entropy = head_logprobs(
            hidden, weight, bias, targets, temperatures, LogitScale(0.5, 2.0), with_entropy_grad=with_entropy_grad
        )
        total = logprobs.sum() + (entropy.sum() if with_entropy_grad else 0)
        gradients.append(torch.autograd.grad(total, [hidden, weight, bias]))
    for cpu, gpu in zip(*gradients, strict=True):
        torch.testing.assert_close(gpu, cpu)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_on_a_gpu_tiles_are_exact_and_hold_no_logits(dtype, atol):
    """Positions and vocabulary are cut in several tiles, the last ones short; the reference is the CPU's, in fp64."""
    torch.manual_seed(2)
    rows, width, vocab = 4 * TILES["cuda"][0] + 5, 64, 3 * TILES["cuda"][1] + 7
    hidden, weight = torch.randn(rows, width).to(dtype), (torch.randn(vocab, width) / 8).to(dtype)
    targets, temperatures, pull = torch.randint(0, vocab, (rows,)), torch.rand(rows) + 0.5, torch.randn(rows)

    on_gpu = [t.cuda().requires_grad_() for t in (hidden, weight)]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    logprobs, entropy = head_logprobs(on_gpu[0], on_gpu[1], None, targets.cuda(), temperatures.cuda())
    (logprobs * pull.cuda()).sum().backward()
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < 0.5 * 4 * rows * vocab  # half of what the logits alone would take in fp32

    every = slice(None, None, 97)  # the reference in fp64 is slow
    exact = [t.double().requires_grad_() for t in (hidden[every], weight)]
    wanted, wanted_entropy = plain(*exact, None, targets[every], temperatures[every].double(), LogitScale())
    assert (logprobs.detach().cpu()[every] - wanted).abs().max() < atol
    assert (entropy.detach().cpu()[every] - wanted_entropy).abs().max() < atol
    (wanted * pull[every]).sum().backward()
    gradient, wanted_gradient = on_gpu[0].grad.cpu()[every].double(), exact[0].grad
    assert (gradient - wanted_gradient).norm() < (1e-5 if dtype == torch.float32 else 1e-2) * wanted_gradient.norm()
