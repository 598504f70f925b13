"""What transformers computes for a completion whose weights changed on the way, and how an engine gets weights."""

# T tokens, V vocabulary

import asyncio
import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache

from turngym.agents.base import Completion, Sampling
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.transports import CudaIpcWriter, ShmWriter
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.engines.weights import Bucket, TensorSpec

PROMPT = np.frombuffer(b"Count: 1 2 3", np.uint8).astype(np.int32)
Model = Any  # Any: transformers' models and peft's have no common type


def recomputed(
    models: Sequence[Model], ends: Sequence[int], prompt: NDArray[np.int32], token_ids: NDArray[np.int32]
) -> NDArray[np.float32]:
    """Return the logprobs of a completion of which `models[i]` sampled the tokens up to `ends[i]`, from all before."""
    ids = torch.tensor(np.concatenate([prompt, token_ids])).long()
    pieces, begin = [], len(prompt)
    for model, end in zip(models, [*ends, len(token_ids)], strict=True):
        with torch.no_grad():
            logprobs_TV = model(ids[None]).logits[0, begin - 1 : len(prompt) + end - 1].log_softmax(-1)
        pieces.append(logprobs_TV.gather(1, ids[begin : len(prompt) + end, None])[:, 0])
        begin = len(prompt) + end
    return torch.cat(pieces).numpy()


def kept(
    models: Sequence[Model], ends: Sequence[int], prompt: NDArray[np.int32], token_ids: NDArray[np.int32]
) -> NDArray[np.float32]:
    """The same where each model goes on with the keys and values that those before it left.

    The last token that a model sampled is fed to the next one: its keys and values come of its successor.
    """
    ids = torch.tensor(np.concatenate([prompt, token_ids])).long()
    cache, pieces, fed = DynamicCache(), [], 0
    for model, end in zip(models, [*ends, len(token_ids)], strict=True):
        until = len(prompt) + end - 1
        with torch.no_grad():
            logprobs_TV = model(ids[None, fed:until], past_key_values=cache, use_cache=True).logits[0].log_softmax(-1)
        pieces.append(logprobs_TV.gather(1, ids[fed + 1 : until + 1, None])[:, 0])
        fed = until
    return torch.cat(pieces)[len(prompt) - 1 :].numpy()


def ends_of(versions: NDArray[np.int32]) -> list[int]:
    """Return after how many tokens each version but the last ends."""
    return (1 + np.flatnonzero(np.diff(versions))).tolist()


async def sampled(engine: VllmEngine, least: int) -> None:
    """Wait until some running request has so many tokens."""
    async with asyncio.timeout(60):
        while max(engine._child.num_sampled().values(), default=0) < least:
            await asyncio.sleep(0.002)


@contextlib.contextmanager
def buckets_of(tensors: dict[str, torch.Tensor], *, on_gpu: bool) -> Iterator[Iterator[Bucket]]:
    """Lay tensors in two buckets, each when it is asked for: a GPU's writer has one buffer for both."""
    specs = [TensorSpec(name, "float32", tuple(tensor.shape)) for name, tensor in tensors.items()]
    plan = [tuple(specs[:7]), tuple(specs[7:])]
    writer = CudaIpcWriter(plan) if on_gpu else ShmWriter(plan)
    try:
        yield (writer.write(i, [tensors[spec.name].detach() for spec in part]) for i, part in enumerate(plan))
    finally:
        writer.close()


class Rig:
    """An engine with the weights it was ever given; on a CPU it has 15 blocks of 128 tokens, too few for 4 requests."""

    def __init__(
        self, folder: Path, *, on_gpu: bool = False, max_context: int = 640, kv_cache_gib: float = 0.004
    ) -> None:
        self.on_gpu = on_gpu
        self.pace = 6 if on_gpu else 1  # how many times as long a request is that outlasts updates
        self.tolerance = 2e-2 if on_gpu else 1e-4  # of a logprob
        self.engine = VllmEngine(
            VllmConfig(
                str(folder),
                "float32",
                max_context=max_context * self.pace,
                max_num_seqs=4,
                kv_cache_gib=kv_cache_gib,
                num_threads=2,
                gpu_memory_utilization=0.2,
                hang_timeout_s=2.0,
            ),
            on_gpu=on_gpu,
        )
        self.models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()]

    async def sampled(self, least: int) -> None:
        """Wait until some running request has so many tokens."""
        await sampled(self.engine, least)

    async def update(self, mode: UpdateMode) -> None:
        """Send other weights, strongly changed in every tensor, and remember them.

        Of the first ones, so that logits stay small however many updates there were: a GPU's error grows with them.
        """
        model = copy.deepcopy(self.models[0])
        factor = 1 + len(self.models) * 0.618 % 1  # far from that of the version before and the one after
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(factor)
        await self.engine.pause(mode)
        await self.send(model)
        await self.engine.resume()

    async def send(self, model: Model) -> None:
        await self.engine.begin_update()
        with buckets_of(dict(model.named_parameters()), on_gpu=self.on_gpu) as buckets:
            for bucket in buckets:
                assert await self.engine.load_bucket(bucket) == bucket.checksum
        await self.engine.finish_update(len(self.models))
        self.models.append(model)

    def ask(self, num_tokens: int, prompt: NDArray[np.int32] = PROMPT) -> asyncio.Task[Completion]:
        return asyncio.create_task(self.engine.generate(prompt, Sampling(num_tokens)))

    def distance(
        self, reference: Any, completion: Completion, prompt: NDArray[np.int32] = PROMPT, shift: int = 0
    ) -> float:
        """How far a completion's logprobs are at most from the reference; its spans are shifted by so many tokens."""
        versions = completion.versions
        models = [self.models[version] for version in dict.fromkeys(versions.tolist())]
        ends = [end + shift for end in ends_of(versions)]
        return float(np.abs(completion.logprobs - reference(models, ends, prompt, completion.token_ids)).max())
