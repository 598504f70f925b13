"""What vLLM says of given tokens is the log-softmax of the model, whole, at the temperature it was started for."""

# T tokens, V vocabulary

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from turngym.agents.base import Sampling
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.vllm import VllmConfig, VllmEngine

# A CPU calculates in fp32; a GPU's kernels for attention round the factors of a product to TF32.
DEVICES = [pytest.param(False, 1e-4, id="cpu"), pytest.param(True, 5e-3, id="gpu", marks=pytest.mark.gpu)]
pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]


def scores_of(model, token_ids: np.ndarray, temperature: float) -> np.ndarray:
    """The same by transformers, without any engine."""
    ids_T = torch.tensor(token_ids).long()
    with torch.no_grad():
        logprobs_TV = (model(ids_T[None]).logits[0, :-1] / temperature).log_softmax(-1)
    return logprobs_TV.gather(1, ids_T[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.soak), 0.7])
@pytest.mark.parametrize(("on_gpu", "tolerance"), DEVICES)
async def test_scores_are_the_models_own(tiny_model: Path, on_gpu, tolerance, temperature):
    config = VllmConfig(
        str(tiny_model),
        "float32",
        max_context=400,
        max_num_seqs=16,
        kv_cache_gib=0.05,
        num_threads=2,
        gpu_memory_utilization=0.2,
        max_batched_tokens=64,  # sequences are computed in several chunks, and together with others
        scoring_temperature=temperature,
    )
    engine = VllmEngine(config, on_gpu=on_gpu)  # with the prefix cache, which must lose nothing
    with pytest.raises(EngineDeadError, match="not started"):
        await engine.score(np.arange(3, dtype=np.int32))
    await engine.start()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    rng = np.random.default_rng(0)
    start = rng.integers(0, 256, 200)
    lengths = [2, 399, 3, 64, 65, 128, 129, 33, 16, 17, 250, 250]
    sequences = [
        np.concatenate([start[: n // 2], rng.integers(0, 258, n - n // 2)])[:n].astype(np.int32) for n in lengths
    ]
    try:
        for _ in range(2):  # the second time every prefix is known
            scores = await asyncio.gather(*(engine.score(ids) for ids in sequences))
            for ids, scores_T in zip(sequences, scores, strict=True):
                assert scores_T.dtype == np.float32
                assert np.isnan(scores_T[0])
                np.testing.assert_allclose(scores_T[1:], scores_of(model, ids, temperature), atol=tolerance)
        with pytest.raises(EngineError, match="vLLM refused"):
            await engine.score(np.array([1, 258], np.int32))  # no such token
        await engine.health()
        if temperature == 1.0:
            said = await engine.generate(sequences[0], Sampling(8))
            scores_T = await engine.score(np.concatenate([sequences[0], said.token_ids]))
            np.testing.assert_allclose(scores_T[2:], said.logprobs, atol=tolerance)
        else:
            with pytest.raises(EngineError, match=r"temperature 0\.7 only"):
                await engine.generate(sequences[0], Sampling(8))
    finally:
        await engine.close()
