"""`turngym merge-lora` against peft's own model, for language and for reward models; and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from turngym.__main__ import main
from turngym.errors import ConfigError
from turngym.learner.models.merge_lora import merge_lora

IDS = torch.arange(40, 60)[None]


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory) -> tuple[Path, Tensor]:
    """An adapter that does something, and the logits of peft's model with it."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return made(base, "CAUSAL_LM", tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def reward_adapter(tiny_model: Path, tmp_path_factory) -> tuple[Path, Tensor]:
    base = AutoModelForSequenceClassification.from_pretrained(tiny_model, dtype=torch.float32, num_labels=1)
    return made(base, "SEQ_CLS", tmp_path_factory.mktemp("reward_adapter"))


def made(base, task: str, folder: Path) -> tuple[Path, Tensor]:
    torch.manual_seed(3)
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type=task, init_lora_weights=False)
    )
    model.save_pretrained(folder)
    with torch.no_grad():
        return folder, model.eval()(IDS).logits


def logits_of(folder: Path, kind=AutoModelForCausalLM, dtype: torch.dtype = torch.float32) -> Tensor:
    with torch.no_grad():
        return kind.from_pretrained(folder, dtype=dtype).eval()(IDS).logits


def changed(adapter: Path, folder: Path, rename) -> Path:
    """A copy of an adapter with other names, or none, for its tensors."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({rename(name): t for name, t in tensors.items() if rename(name)}, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.slow
def test_it_equals_pefts_logits(adapter, tiny_model, tmp_path, capsys):
    folder, logits = adapter
    words = f"merge-lora --model_path {tiny_model} --lora_path {folder} --output_path {tmp_path / 'out'}"
    assert main([*words.split(), "--ds.param_dtype", "fp32"]) == 0
    assert (logits - logits_of(tiny_model)).abs().max() > 0.1
    assert (logits - logits_of(tmp_path / "out")).abs().max() < 1e-5
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    out = capsys.readouterr()
    assert "merged into it, in fp32" in out.out
    assert "was made for" not in out.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.slow
def test_bf16_is_the_float32_result_rounded(adapter, tiny_model, tmp_path):
    folder, _ = adapter
    (tmp_path / "half").mkdir()  # an empty folder is no reason to stop
    merge_lora(str(tiny_model), str(folder), str(tmp_path / "half"))
    merge_lora(str(tiny_model), str(folder), str(tmp_path / "whole"), param_dtype="fp32")
    half, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "whole"))
    assert half.keys() == whole.keys()
    assert all(torch.equal(half[name], whole[name].bfloat16()) for name in whole)


@pytest.mark.slow
def test_a_reward_model_keeps_its_head(reward_adapter, tiny_model, tmp_path):
    folder, scores = reward_adapter
    merge_lora(str(tiny_model), str(folder), str(tmp_path / "out"), is_reward_model=True, param_dtype="fp32")
    assert (scores - logits_of(tmp_path / "out", AutoModelForSequenceClassification)).abs().max() < 1e-5
    assert load_file(tmp_path / "out" / "model.safetensors")["score.weight"].shape == (1, 128)


def test_a_head_that_nobody_trained_is_refused(adapter, tiny_model, tmp_path):
    with pytest.raises(ConfigError, match="has a trained head"):
        merge_lora(str(tiny_model), str(adapter[0]), str(tmp_path / "out"), is_reward_model=True)


@pytest.mark.slow
def test_a_head_of_the_base_will_do(reward_adapter, adapter, tiny_model, tmp_path):
    base = tmp_path / "base"
    merge_lora(str(tiny_model), str(reward_adapter[0]), str(base), is_reward_model=True, param_dtype="fp32")
    merge_lora(str(base), str(adapter[0]), str(tmp_path / "out"), is_reward_model=True, param_dtype="fp32")
    heads = [load_file(tmp_path / name / "model.safetensors")["score.weight"] for name in ("base", "out")]
    assert torch.equal(*heads)


@pytest.mark.slow
def test_another_base_is_named(adapter, tiny_model, tmp_path, capsys):
    folder = changed(adapter[0], tmp_path / "adapter", lambda name: name)
    settings = json.loads((folder / "adapter_config.json").read_text()) | {"base_model_name_or_path": "some/base"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    merge_lora(str(tiny_model), str(folder), str(tmp_path / "out"))
    assert "the adapter was made for 'some/base'; merging it into" in capsys.readouterr().err


def test_other_shapes_are_refused(adapter, tiny_model, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig.from_pretrained(tiny_model)
    settings.hidden_size, settings.intermediate_size = 64, 96
    LlamaForCausalLM(settings).save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"does not fit.*size mismatch"):
        merge_lora(str(tmp_path / "other"), str(adapter[0]), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda name: name.replace("base_model.model.", "base_model.model.model."), "56 have none.*56 are absent"),
        (lambda name: None if "layers.3.mlp" in name else name, "0 have none.*6 are absent"),
    ],
)
def test_tensors_without_a_place_and_absent_ones_are_refused(adapter, tiny_model, tmp_path, rename, message):
    folder = changed(adapter[0], tmp_path / "adapter", rename)
    with pytest.raises(ConfigError, match=message):
        merge_lora(str(tiny_model), str(folder), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"lora_path": "nowhere"}, "--lora_path: there is no folder"),
        ({"lora_path": "empty"}, "holds no adapter_config.json and no adapter_model.safetensors"),
        ({"output_path": "full"}, "exists and is not an empty folder"),
        ({"model_path": "empty"}, "--model_path: cannot load a model"),
    ],
)
def test_paths_that_cannot_be_used(adapter, tiny_model, tmp_path, capsys, names, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    paths = {"model_path": tiny_model, "lora_path": adapter[0], "output_path": tmp_path / "out"}
    paths |= {option: tmp_path / name for option, name in names.items()}
    assert main(["merge-lora", *(word for option, path in paths.items() for word in (f"--{option}", str(path)))]) == 2
    assert message in capsys.readouterr().err


def test_help_is_quick_and_names_openrlhfs_options():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "turngym", "merge-lora", "--help"], capture_output=True, text=True
    )
    for option in ("--model_path", "--lora_path", "--output_path", "--is_rm", "--ds.param_dtype"):
        assert option in done.stdout
    assert " torch\n" not in done.stderr
