"""Head and optimisers under ZeRO-3, with weights really sharded over gloo ranks, against plain PyTorch on whole ones.

The second step is taken twice, once from a checkpoint of the first.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from turngym.learner.models.attention import PACKED
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.ranks.optimizers import hidden_matrices

from . import sharded_rank

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tied embeddings of 120,000 numbers: above what ZeRO-3 keeps whole."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=3751, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("sharded")
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return folder


def run_ranks(folder: Path, world_size: int) -> dict:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = folder / f"{world_size}.pt"
    ranks = [
        subprocess.Popen(
            [sys.executable, sharded_rank.__file__, str(rank), str(world_size), str(port), str(folder), str(out)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(text[-3000:] for text in outputs)
    return torch.load(out)


def newton_schulz(matrix: torch.Tensor, steps: int) -> torch.Tensor:
    """The iteration on singular values, where it is a polynomial of numbers."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / matrix.double().norm()
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
    return (left * values @ right * scale).float()


def plain(folder: Path, name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The same two steps with plain PyTorch."""
    config = sharded_rank.OPTIMIZERS[name]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=PACKED)
    batch = sharded_rank.make_batch(model.config.vocab_size)
    matrices = hidden_matrices(model) if config.kind == "muon" else []
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    adam = torch.optim.AdamW(others, config.lr, config.betas, config.eps, config.weight_decay)
    buffers = [torch.zeros_like(matrix) for matrix in matrices]
    norms = []
    for _ in range(2):
        model.zero_grad()
        sharded_rank.score(action_logprobs(model, batch, "cpu", with_entropy_grad=True)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 30.0)))
        adam.step()
        with torch.no_grad():
            for matrix, buffer in zip(matrices, buffers, strict=True):
                assert matrix.grad is not None
                buffer.mul_(0.95).add_(matrix.grad, alpha=0.05)
                mixed = 0.05 * matrix.grad + 0.95 * buffer if config.nesterov else buffer
                matrix.mul_(1 - config.muon_lr * config.weight_decay)
                matrix.sub_(config.muon_lr * newton_schulz(mixed, config.ns_steps))
    return norms, dict(model.named_parameters())


@pytest.mark.parametrize("world_size", [1, 2])
def test_two_steps_equal_plain_pytorch(folder, world_size):
    results = run_ranks(folder, world_size)
    for name, result in results.items():
        norms, weights = plain(folder, name)
        assert result["norms"] == pytest.approx(norms, rel=1e-4), name
        assert norms[0] > 30  # so that clipping acts
        assert result["weights"].keys() == weights.keys()
        for path, weight in weights.items():
            assert torch.allclose(result["weights"][path], weight, rtol=0, atol=5e-6), (name, path)
            assert torch.allclose(result["repeated"][path], weight, rtol=0, atol=5e-6), (name, path)
        if world_size == 2:
            assert "model.embed_tokens.weight" in result["sharded"]
