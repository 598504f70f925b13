"""Adapters by hand and against peft: what is trained, what the reference is, what is merged, perturbed and saved."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM

from turngym.errors import ConfigError
from turngym.executors.engines.weights import TensorSpec
from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.models.lora import Adapters, add_lora, check_lora, describe, disabled_adapters
from turngym.learner.options import DsOptions, LoraOptions

OPTIONS = LoraOptions(rank=4, alpha=8)
Q = "model.layers.0.self_attn.q_proj"


def load(folder: Path, dtype: torch.dtype = torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=PACKED)


@pytest.fixture
def base(tiny_model: Path):
    return load(tiny_model)


@pytest.fixture
def adapted(tiny_model: Path):
    """A model with adapters that do something."""
    torch.manual_seed(0)
    model = add_lora(load(tiny_model), OPTIONS)
    randomise(model)
    return model


def randomise(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)


def merged(model: nn.Module) -> dict[str, torch.Tensor]:
    adapters, parameters = Adapters(model), dict(model.named_parameters())
    return {spec.name: adapters.merge(spec.name, parameters) for spec in adapters.merged_specs(parameters)}


@pytest.mark.slow
def test_only_adapters_are_trained_and_nothing_changes_at_first(base, tiny_model, make_batch):
    batch = make_batch([[0, 1, 1], [0, 0, 1, 1]])
    before = action_logprobs(base, batch, "cpu").logprobs_N
    model = add_lora(load(tiny_model), OPTIONS)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 7 * 4  # A and B of seven linear layers in each of four blocks
    assert trained[f"{Q}.lora_A.default.weight"].shape == (4, 128)
    assert trained[f"{Q}.lora_B.default.weight"].shape == (128, 4)
    assert type(model) is type(base)
    assert torch.equal(action_logprobs(model, batch, "cpu").logprobs_N, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_have_the_dtype_of_the_model(tiny_model, dtype):
    model = add_lora(load(tiny_model, dtype), OPTIONS)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.slow
def test_gradients_reach_adapters_through_checkpointed_activations(tiny_model, make_batch):
    gradients = []
    for checkpoints in (False, True):
        model = load(tiny_model)
        if checkpoints:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(0)
        add_lora(model.train(), OPTIONS)
        randomise(model)
        action_logprobs(model, make_batch([[0, 1, 1]]), "cpu").logprobs_N.sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    plain, recomputed = gradients
    assert len(plain) == len(recomputed) == 56
    assert all(plain[name].abs().sum() > 0 for name in plain)
    assert all(torch.allclose(plain[name], recomputed[name], atol=1e-6) for name in plain)


@pytest.mark.slow
def test_disabled_adapters_leave_the_base_model_bit_for_bit(base, adapted, make_batch):
    batch = make_batch([[0, 1, 1], [0, 0, 1, 1]])
    of_base = action_logprobs(base, batch, "cpu").logprobs_N
    of_policy = action_logprobs(adapted, batch, "cpu").logprobs_N
    with disabled_adapters(adapted):
        assert torch.equal(action_logprobs(adapted, batch, "cpu").logprobs_N, of_base)
    assert (of_policy - of_base).abs().max() > 0.01
    assert torch.equal(action_logprobs(adapted, batch, "cpu").logprobs_N, of_policy)
    assert sum(parameter.requires_grad for parameter in adapted.parameters()) == 56


def test_disabled_adapters_come_back_after_an_error(adapted, make_batch):
    batch = make_batch([[0, 1]])
    before = action_logprobs(adapted, batch, "cpu").logprobs_N
    with pytest.raises(ZeroDivisionError), disabled_adapters(adapted):
        _ = 1 / 0
    assert torch.equal(action_logprobs(adapted, batch, "cpu").logprobs_N, before)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2, bias=False)


def test_a_merged_tensor_by_hand():
    model = add_lora(TwoLayers(), LoraOptions(rank=1, alpha=3, target_modules=("first",)))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        parameters["first.base_layer.weight"].copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        parameters["first.lora_A.default.weight"].copy_(torch.tensor([[1.0, -1.0]]))
        parameters["first.lora_B.default.weight"].copy_(torch.tensor([[2.0], [0.5]]))
    adapters = Adapters(model)
    assert [spec.name for spec in adapters.merged_specs(parameters)] == ["first.weight", "first.bias", "second.weight"]
    assert adapters.parts("first.weight") == [
        "first.base_layer.weight",
        "first.lora_A.default.weight",
        "first.lora_B.default.weight",
    ]
    assert adapters.parts("first.bias") == ["first.base_layer.bias"]
    # W + 3/1 * B @ A, and B @ A = [[2, -2], [0.5, -0.5]]
    assert adapters.merge("first.weight", parameters).tolist() == [[7.0, -4.0], [4.5, 2.5]]
    assert torch.equal(adapters.merge("second.weight", parameters), parameters["second.weight"])


@pytest.mark.slow
def test_merged_tensors_are_named_as_the_base_has_them_and_equal_pefts(base, adapted, tiny_model, tmp_path):
    parameters = dict(adapted.named_parameters())
    specs = Adapters(adapted).merged_specs(parameters)
    assert specs == [TensorSpec(name, "float32", tuple(p.shape)) for name, p in base.named_parameters()]
    save(adapted, tmp_path, str(tiny_model))
    of_peft = PeftModel.from_pretrained(load(tiny_model), tmp_path).merge_and_unload()
    tensors = merged(adapted)
    for name, parameter in of_peft.named_parameters():
        assert torch.allclose(tensors[name], parameter, atol=1e-6, rtol=0), name
    changed = {name for name, parameter in base.named_parameters() if not torch.equal(tensors[name], parameter)}
    assert len(changed) == 28


@pytest.mark.slow
def test_bfloat16_is_rounded_once(tiny_model):
    torch.manual_seed(0)
    model = add_lora(load(tiny_model, torch.bfloat16), OPTIONS)
    randomise(model)
    tensor = merged(model)[f"{Q}.weight"]
    parameters = dict(model.named_parameters())
    parts = ("base_layer.weight", "lora_A.default.weight", "lora_B.default.weight")
    w, a, b = (parameters[f"{Q}.{part}"].double() for part in parts)
    right = (w + 2 * b @ a).bfloat16()
    twice = w.bfloat16() + (2 * b @ a).bfloat16()
    assert tensor.dtype == torch.float32
    assert (tensor.bfloat16() != right).double().mean() < 1e-3
    assert (twice != right).double().mean() > 0.05


@pytest.mark.slow
def test_an_optimiser_step_changes_what_is_exported(base, tiny_model, make_batch):
    model = add_lora(load(tiny_model), OPTIONS)
    first = {name: tensor.clone() for name, tensor in merged(model).items()}
    assert all(torch.equal(first[name], parameter) for name, parameter in base.named_parameters())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    action_logprobs(model, make_batch([[0, 1, 1]]), "cpu").logprobs_N.sum().backward()
    optimizer.step()
    changed = {name for name, tensor in merged(model).items() if not torch.equal(tensor, first[name])}
    assert changed == set(Adapters(model).layers)


@pytest.mark.slow
@pytest.mark.parametrize("halves", [True, False])
def test_a_perturbation_is_strong_and_undone_exactly(adapted, halves):
    adapters, parameters = Adapters(adapted), dict(adapted.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    tensors = {name: tensor.clone() for name, tensor in merged(adapted).items()}
    for names in adapters.perturbed_parts(parameters):
        adapters.perturb(names, parameters, halves=halves)
    assert {name for names in adapters.perturbed_parts(parameters) for name in names} == parameters.keys()
    for name, tensor in merged(adapted).items():
        weight = before[adapters.parts(name)[0]]
        if name in adapters.layers:
            remains = 0.5 * weight if halves else weight
            assert ((tensor - remains).norm() / remains.norm()).item() == pytest.approx(0.5, rel=1e-5)
        else:
            assert torch.equal(tensor, 0.5 * weight if halves else weight)
    for names in adapters.perturbed_parts(parameters):
        adapters.restore(names, parameters, halves=halves)
    assert all(torch.equal(parameter, before[name]) for name, parameter in parameters.items())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in merged(adapted).items())


def save(model: nn.Module, folder: Path, source: str) -> None:
    adapters, parameters = Adapters(model), dict(model.named_parameters())
    specs = adapters.adapter_specs(parameters)
    adapters.save(folder, source, {spec.name: adapters.merge(spec.name, parameters) for spec in specs})


def test_a_saved_adapter_is_what_peft_loads(adapted, tiny_model, tmp_path, make_batch):
    save(adapted, tmp_path, str(tiny_model))
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["base_model_name_or_path"]) == (4, 8, str(tiny_model))
    loaded = PeftModel.from_pretrained(load(tiny_model), tmp_path)
    theirs = {name.removeprefix("base_model.model."): p for name, p in loaded.named_parameters()}
    assert all(torch.equal(theirs[name], parameter) for name, parameter in adapted.named_parameters())


def test_a_tensor_under_adapters_that_is_not_linear_or_tied_is_refused(tiny_model):
    with pytest.raises(ConfigError, match=r"'model.embed_tokens', a Embedding; only linear layers"):
        add_lora(load(tiny_model), replace(OPTIONS, target_modules=("embed_tokens",)))
    with pytest.raises(ConfigError, match=r"'lm_head', whose weights are tied"):
        add_lora(load(tiny_model), replace(OPTIONS, target_modules=("lm_head",)))
    with pytest.raises(ConfigError, match=r"--ds.lora.target_modules q_projj: Target modules"):
        add_lora(load(tiny_model), replace(OPTIONS, target_modules=("q_projj",)))


def test_layers_can_be_named(tiny_model):
    model = add_lora(load(tiny_model), replace(OPTIONS, target_modules=("q_proj", "v_proj")))
    assert set(Adapters(model).layers) == {
        f"model.layers.{layer}.self_attn.{which}_proj.weight" for layer in range(4) for which in "qv"
    }


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (DsOptions(lora=LoraOptions(rank=-1)), "--ds.lora.rank wants 0"),
        (DsOptions(lora=LoraOptions(rank=513, sync="adapter")), "serves ranks up to 512, and --ds.lora.rank is 513"),
        (DsOptions(lora=LoraOptions(rank=8, dropout=1.0)), "--ds.lora.dropout wants a share"),
        (DsOptions(lora=LoraOptions(rank=8, target_modules=())), "--ds.lora.target_modules is empty"),
        (DsOptions(load_in_4bit=True), "give --ds.lora.rank"),
        (DsOptions(load_in_4bit=True, lora=LoraOptions(rank=8, sync="adapter")), "needs --ds.lora.sync merged"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(ds, message):
    with pytest.raises(ConfigError, match=message):
        check_lora(ds)


def test_options_in_words():
    check_lora(DsOptions())
    check_lora(DsOptions(load_in_4bit=True, lora=LoraOptions(rank=8)))
    assert describe(LoraOptions()) == "none"
    assert describe(OPTIONS) == "rank 4, alpha 8, on all-linear"
