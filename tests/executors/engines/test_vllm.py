"""vLLM itself against the conformance checks that the scripted engine passes, and weights exact in fp32."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from turngym.agents.base import Completion, Sampling
from turngym.errors import EngineDeadError, EngineError, WeightSyncError
from turngym.executors.engines.checks import check_engine
from turngym.executors.engines.transports import CudaIpcWriter, ShmWriter
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.engines.weights import TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]

# A CPU calculates in fp32; a GPU's kernels for attention and adapters round the factors of a product to TF32.
DEVICES = [
    pytest.param(False, "full_decode_only", 1e-4, id="cpu"),
    pytest.param(True, "full_decode_only", 5e-3, id="gpu", marks=pytest.mark.gpu),
    pytest.param(True, "full_and_piecewise", 5e-3, id="gpu-compiled", marks=[pytest.mark.gpu, pytest.mark.soak]),
]
PROMPT = np.frombuffer(b"Count: 1 2 3", np.uint8).astype(np.int32)


def logprobs_of(model, token_ids: np.ndarray) -> np.ndarray:
    ids = torch.tensor(np.concatenate([PROMPT, token_ids]))[None].long()
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()


async def finished(engine: VllmEngine, priorities: list[int]) -> list[int]:
    """Ask for as many completions at once, and return the priorities in the order of their ends."""
    ended: list[int] = []

    async def ask(priority: int) -> None:
        await engine.generate(PROMPT, Sampling(6, priority=priority))
        ended.append(priority)

    await asyncio.gather(*[ask(priority) for priority in priorities])
    return ended


@pytest.mark.parametrize(("on_gpu", "cudagraph_mode", "tolerance"), DEVICES)
async def test_vllm_keeps_the_contract_and_follows_weights(tiny_model: Path, on_gpu, cudagraph_mode, tolerance):
    config = VllmConfig(
        str(tiny_model),
        "float32",
        max_context=256,
        max_num_seqs=64,
        kv_cache_gib=0.1,
        num_threads=2,
        gpu_memory_utilization=0.2,
        cudagraph_mode=cudagraph_mode,
    )
    engine = VllmEngine(config, on_gpu=on_gpu)
    with pytest.raises(EngineDeadError, match="not started"):
        await engine.generate(PROMPT, Sampling(4))
    await engine.start()
    # Of three times as many requests as run at once, the last goes before those that wait.
    assert 3 in (await finished(engine, [5] * 64 + [9] * 128 + [3]))[:130]
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    parameters = dict(model.named_parameters())
    specs = [TensorSpec(name, "float32", tuple(p.shape)) for name, p in parameters.items()]
    plan = [tuple(specs[:7]), tuple(specs[7:])]  # a layer is cut in two
    writer = CudaIpcWriter(plan) if on_gpu else ShmWriter(plan)

    lasting = ShmWriter(plan)

    def written(writer):
        """Write each bucket when it is asked for: a GPU's writer has one buffer for all."""
        for index, tensors in enumerate(plan):
            yield writer.write(index, [parameters[spec.name].detach() for spec in tensors])

    try:
        # Strong changes to every tensor, the tied embedding included: fp32 shows any that did not arrive.
        for version in (1, 2):
            with torch.no_grad():
                for index, parameter in enumerate(parameters.values()):
                    parameter.mul_(1.5 if index % 2 else 0.7)
            await engine.pause()
            await engine.begin_update()
            for bucket in written(writer):
                assert await engine.load_bucket(bucket) == bucket.checksum
            await engine.finish_update(version)
            await engine.resume()
            completion = await engine.generate(PROMPT, Sampling(24))
            assert completion.logprobs is not None
            assert np.abs(completion.logprobs - logprobs_of(model, completion.token_ids)).max() < tolerance
            assert set(completion.versions.tolist()) == {version}
        hot = await engine.generate(PROMPT, Sampling(24, temperature=0.6))
        assert hot.logprobs is not None
        assert not np.allclose(
            hot.logprobs, logprobs_of(model, hot.token_ids), atol=1e-2
        )  # of the sampled distribution

        with pytest.raises(EngineError, match=r"exceed the context of 256 tokens"):
            await engine.generate(PROMPT, Sampling(256))

        # An update that leaves parameters out is an error that names them, and the next whole one mends it.
        await engine.pause()
        await engine.begin_update()
        await engine.load_bucket(next(written(writer)))
        with pytest.raises(WeightSyncError, match="parameters of the engine got no weights"):
            await engine.finish_update(3)
        await engine.begin_update()
        for bucket in written(writer):
            await engine.load_bucket(bucket)
        await engine.finish_update(3)
        await engine.resume()
        again = await engine.generate(PROMPT, Sampling(24))
        assert again.logprobs is not None
        assert np.abs(again.logprobs - logprobs_of(model, again.token_ids)).max() < tolerance

        buckets = list(written(lasting))
        assert await check_engine(engine, vocab_size=256, buckets=buckets, tolerance=tolerance) == []
    finally:
        writer.close()
        lasting.close()
        await engine.close()
    with pytest.raises(EngineDeadError):
        await engine.generate(PROMPT, Sampling(4))


@pytest.mark.parametrize(("on_gpu", "cudagraph_mode", "tolerance"), DEVICES[:2])
async def test_seeds_hold_where_prompts_are_read_in_parts(tiny_model: Path, on_gpu, cudagraph_mode, tolerance):
    """vLLM drops what it samples for a part of a prompt; on a CPU a seeded one ended the engine."""
    config = VllmConfig(
        str(tiny_model),
        "float32",
        max_context=256,
        max_num_seqs=32,
        kv_cache_gib=0.1,
        num_threads=2,
        gpu_memory_utilization=0.2,
        cudagraph_mode=cudagraph_mode,
        enable_prefix_caching=False,
        max_batched_tokens=64,
    )
    engine = VllmEngine(config, on_gpu=on_gpu)
    await engine.start()

    async def ask(length: int, seed: int | None) -> Completion:
        return await engine.generate(np.resize(PROMPT, length), Sampling(6, seed=seed))

    try:
        alone = [await ask(60 - 12 * number, number) for number in range(3)]  # each is read at once
        # Their prompts are read in parts now, between others, some of which have seeds.
        together = await asyncio.gather(
            *[ask(200, None if number % 2 else 9) for number in range(6)],
            *[ask(60 - 12 * number, number) for number in range(3)],
            *[ask(150, 7) for _ in range(4)],
        )
        for number, completion in enumerate(alone):
            assert together[6 + number].token_ids.tolist() == completion.token_ids.tolist()
        assert len({completion.token_ids.tobytes() for completion in together[9:]}) == 1
        assert len({completion.token_ids.tobytes() for completion in together[:6:2]}) == 1
    finally:
        await engine.close()
