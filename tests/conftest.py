"""What every test may need: no model hub, reasons for skipping, the real small model."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

os.environ["HF_HUB_OFFLINE"] = "1"  # before any test module imports transformers
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def why_no_gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "needs a CUDA device, and this machine has no nvidia-smi"
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return None if listing.returncode == 0 and "GPU" in listing.stdout else "needs a CUDA device; nvidia-smi lists none"


def why_no_docker() -> str | None:
    if shutil.which("docker") is None:
        return "needs Docker, and this machine has no docker command"
    answer = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=60)
    return None if answer.returncode == 0 else f"needs a Docker daemon: {answer.stderr.strip()[-200:]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("heavy"):
            item.add_marker(pytest.mark.xdist_group("heavy"))
    for marker, why_not in (("gpu", why_no_gpu), ("docker", why_no_docker)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = why_not() if marked else None
        if reason and marker == "docker" and os.environ.get("TURNGYM_REQUIRE_DOCKER"):
            raise pytest.UsageError(f"TURNGYM_REQUIRE_DOCKER is set, and a test {reason}")
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.skip(f"needs the right to mount a disk: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a folder, made on first use and kept in the user's cache."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch_smollm2.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=280)
    assert done.returncode == 0, "scripts/fetch_smollm2.py failed; its messages stand above"
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def check_benchmark() -> Callable[..., None]:
    """Runs a benchmark quickly, by folder and name, and looks at its last line."""
    fields = {"name", "value", "unit", "baseline", "baseline_value", "ratio", "goal", "met", "where"}

    def check(folder: str, name: str, timeout_s: float = 120) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / folder / f"{name}.py"), "--quick"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert result.keys() >= fields
        assert result["name"] == f"{folder}/{name}"
        assert result["value"] > 0
        assert result["baseline_value"] > 0

    return check


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 0.9M parameters whose tokens are bytes, with tied embeddings and a chat template."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|start|>", "<|end|>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = (
        "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
    )
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def without_openrlhf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of that name is imported yet, also where pytest calls the folders of these tests so."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def live() -> Iterator[Callable[[Any], str]]:
    """Serve an ASGI application on this machine, in a thread of its own, and return its URL."""
    import uvicorn

    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread, listener))
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.005)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
