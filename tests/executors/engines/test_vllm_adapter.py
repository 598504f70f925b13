"""vLLM with low-rank adapters against peft, exact in fp32: each version is followed, and none is used in part."""

import asyncio
import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from transformers import AutoModelForCausalLM

from turngym.agents.base import Completion, Sampling
from turngym.errors import WeightSyncError
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.transports import CudaIpcWriter, ShmWriter
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.engines.vllm_adapter import Adapter
from turngym.executors.engines.weights import TensorSpec

from .reference import ends_of, kept, recomputed, sampled

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]

# vLLM's GPU kernels for adapters have no fp32.
DEVICES = [
    pytest.param("float32", 1e-4, id="cpu"),
    pytest.param("float16", 0.08, id="gpu", marks=pytest.mark.gpu),
]
PROMPT = np.frombuffer(b"Count: 1 2 3", np.uint8).astype(np.int32)
RANK, ALPHA = 6, 12  # a rank that vLLM has to round up
STD = 0.2  # of an adapter's weights: far from none, and logits stay so small that fp32 is exact to 1e-4


def logprobs_of(model, token_ids: np.ndarray) -> np.ndarray:
    ids = torch.tensor(np.concatenate([PROMPT, token_ids]))[None].long()
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()


async def send_to(engine: VllmEngine, on_gpu: bool, tensors: Mapping[str, torch.Tensor], version: int) -> None:
    specs = [
        TensorSpec(name, "float16" if on_gpu else "float32", tuple(tensor.shape)) for name, tensor in tensors.items()
    ]
    plan = [tuple(specs[:5]), tuple(specs[5:])]  # an A and its B are cut in two
    writer = CudaIpcWriter(plan) if on_gpu else ShmWriter(plan)
    try:
        await engine.begin_update()
        for index, part in enumerate(plan):
            bucket = writer.write(index, [tensors[spec.name] for spec in part])
            assert await engine.load_bucket(bucket) == bucket.checksum
        await engine.finish_update(version)
    finally:
        writer.close()


@pytest.mark.parametrize(("dtype", "tolerance"), DEVICES)
async def test_vllm_follows_adapters(endless_model: Path, dtype, tolerance):
    on_gpu = dtype == "float16"
    # Of a request that outlasts two updates: as few as may do, since adapters are slow on a CPU, or more.
    lengths = (900, 3600) if on_gpu else (48, 192, 768)
    base = AutoModelForCausalLM.from_pretrained(endless_model, dtype=torch.float32).eval()
    models = [copy.deepcopy(base)]  # of each version
    settings = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(base, settings)
    config = VllmConfig(
        str(endless_model),
        dtype,
        max_context=4096 if on_gpu else 1024,
        max_num_seqs=16,
        kv_cache_gib=0.1,
        num_threads=2,
        gpu_memory_utilization=0.2,
        adapter=Adapter(RANK, ALPHA),
    )
    engine = VllmEngine(config, on_gpu=on_gpu)
    send = partial(send_to, engine, on_gpu)
    await engine.start()

    async def distances() -> tuple[float, float]:
        """How far the engine is from the model with the adapter, and from the one without."""
        completion = await engine.generate(PROMPT, Sampling(24))
        assert completion.logprobs is not None
        assert set(completion.versions.tolist()) == {engine.version}
        with_adapter = np.abs(completion.logprobs - logprobs_of(model, completion.token_ids)).max()
        with model.disable_adapter():
            without = np.abs(completion.logprobs - logprobs_of(model, completion.token_ids)).max()
        return float(with_adapter), float(without)

    try:
        with_adapter, without = await distances()  # no version has been sent
        assert without < tolerance < 0.1 < with_adapter

        async def update(mode: UpdateMode) -> None:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.normal_(std=STD)
            await engine.pause(mode)
            await send(get_peft_model_state_dict(model), len(models))
            models.append(copy.deepcopy(model))
            await engine.resume()

        # The first adapter comes while a request runs without any, the second while it runs with the first.
        async def updated_twice(mode: UpdateMode, num_tokens: int) -> Completion:
            running = asyncio.create_task(engine.generate(PROMPT, Sampling(num_tokens)))
            for least in (12, 30):
                is_time = asyncio.create_task(sampled(engine, least))
                await asyncio.wait([running, is_time], return_when=asyncio.FIRST_COMPLETED)
                is_time.cancel()
                await update(mode)
            return await running

        for mode, reference in ((UpdateMode.KEEP, kept), (UpdateMode.RECOMPUTE, recomputed)):
            for num_tokens in lengths:
                versions = [engine.version + index for index in range(3)]
                completion = await updated_twice(mode, num_tokens)
                if len(ends_of(completion.versions)) == 2:
                    break
            assert dict.fromkeys(completion.versions.tolist()).keys() == set(versions)
            ends = ends_of(completion.versions)
            wanted = reference([models[version] for version in versions], ends, PROMPT, completion.token_ids)
            assert np.abs(completion.logprobs - wanted).max() < tolerance
        await update(UpdateMode.DRAIN)
        with_adapter, without = await distances()
        assert with_adapter < tolerance < 0.1 < without
        tensors = get_peft_model_state_dict(model)

        await engine.pause()
        later = engine.version + 1
        # An extra prefix, as wrapped models have it: vLLM would load such an adapter and use none of it.
        prefixed = {name.replace("base_model.model.", "base_model.model.model."): t for name, t in tensors.items()}
        with pytest.raises(WeightSyncError, match="28 adapted layers have no place in the engine's model"):
            await send(prefixed, later)
        half = {name: tensor for name, tensor in tensors.items() if "layers.3.mlp.down_proj.lora_B" not in name}
        with pytest.raises(WeightSyncError, match="55 tensors came for 28 adapted layers"):
            await send(half, later)
        await engine.begin_update()
        with pytest.raises(WeightSyncError, match="0 tensors came"):
            await engine.finish_update(later)
        await send({name: 2 * tensor for name, tensor in tensors.items()}, later)
        await send(tensors, later)  # a version that is sent again is the one sent last
        await engine.resume()
        with_adapter, _ = await distances()
        assert with_adapter < tolerance
    finally:
        await engine.close()
