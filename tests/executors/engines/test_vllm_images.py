"""vLLM with images: it sees the tokens that the learner sees, and its logprobs are those of transformers."""

import asyncio
import importlib.util
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from PIL import Image as Pictures
from transformers import AutoModelForImageTextToText

from turngym.agents.base import Completion, Sampling
from turngym.agents.chat import ChatAgent
from turngym.agents.images import ImageReader, PlacedImage
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.images import as_image
from turngym.errors import EngineError
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.engines.vllm_adapter import Adapter
from turngym.executors.engines.vllm_images import unexpanded

from ...tiny_vision import make_vision_folder
from .conftest import DEVICES
from .reference import buckets_of, ends_of, sampled

needs_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None,
    reason="vLLM reads images with torchvision, which is not installed here",
)
real = [needs_torchvision, pytest.mark.soak, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]


def image(width: int, height: int, seed: int = 0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return as_image(Pictures.fromarray(pixels))


def user(*parts) -> dict:
    forms = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    return {"role": "user", "content": forms}


def test_markers_stand_for_images_again():
    images = (PlacedImage(image(2, 2), 1, 3, (7,)), PlacedImage(image(2, 2), 3, 4, (7, 8)))
    assert unexpanded(np.array([1, 9, 9, 9, 2], np.int32), images) == [1, 7, 7, 8, 2]
    assert unexpanded(np.array([1, 2], np.int32), ()) == [1, 2]


class Rig:
    """An engine of the tiny vision model, its agent, and the model in transformers, as it was at each version."""

    def __init__(self, folder, *, on_gpu: bool, adapter: Adapter | None = None) -> None:
        self.on_gpu = on_gpu
        config = VllmConfig(
            str(folder),
            "float16" if on_gpu and adapter else "float32",  # vLLM's GPU kernels for adapters have no fp32
            max_context=256,
            max_num_seqs=4,
            kv_cache_gib=0.06,
            num_threads=2,
            gpu_memory_utilization=0.2,
            enforce_eager=True,
            adapter=adapter,
        )
        self.engine = VllmEngine(config, on_gpu=on_gpu)
        self.reader = ImageReader(str(folder))
        self.agent = ChatAgent(load_tokenizer(str(folder)), images=self.reader)
        self.tolerance = 2e-2 if on_gpu else 1e-4
        self.models = [AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()]

    async def answer(self, talk, num_tokens: int = 8) -> Completion:
        sampling = Sampling(num_tokens, temperature=0.0)  # at random it would write `<|image_pad|>` now and then
        completion = await self.engine.generate(talk.prompt_ids(), sampling, talk.prompt_images() or None)
        talk.record(completion, sampling)
        return completion

    def logprobs(self, version: int, sequence) -> np.ndarray:
        """Return the logprob of each token of a whole context, of the model at a version; NaN for the first one."""
        ids = torch.tensor(sequence.token_ids)[None].long()
        given = self.reader.model_inputs([placed.image for placed in sequence.images])
        types = torch.zeros_like(ids)
        for placed in sequence.images:
            types[0, placed.start : placed.stop] = 1
        with torch.no_grad():
            logits_TV = self.models[version](ids, mm_token_type_ids=types, **given).logits[0]
        logprobs_T = logits_TV[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
        return np.concatenate([[np.nan], logprobs_T.numpy()])

    def distance(self, version: int, talk) -> float:
        (sequence,) = talk.sequences()
        actions = sequence.is_action & (sequence.versions == version)
        return float(np.abs(self.logprobs(version, sequence) - sequence.logprobs)[actions].max())

    async def send(self, tensors: Mapping[str, torch.Tensor], mode: UpdateMode) -> None:
        """Send tensors as the next version."""
        await self.engine.pause(mode)
        await self.engine.begin_update()
        with buckets_of(tensors, on_gpu=self.on_gpu) as buckets:
            for bucket in buckets:
                assert await self.engine.load_bucket(bucket) == bucket.checksum
        await self.engine.finish_update(len(self.models))
        await self.engine.resume()

    async def update(self, mode: UpdateMode) -> None:
        """Send other weights, strongly changed in every tensor, those of the eyes included."""
        model = AutoModelForImageTextToText.from_pretrained(self.reader._model, dtype=torch.float32).eval()
        generator = torch.Generator().manual_seed(len(self.models))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(torch.rand(parameter.shape, generator=generator) + 0.5)
        await self.send(dict(model.named_parameters()), mode)
        self.models.append(model)


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=DEVICES)
async def rig(tmp_path_factory, request):
    rig = Rig(make_vision_folder(tmp_path_factory.mktemp("vision")), on_gpu=request.param)
    await rig.engine.start()
    yield rig
    await rig.engine.close()


def on_vllm(test):
    """Mark a test that runs on the real engine."""
    for mark in real:
        test = mark(test)
    return test


@on_vllm
async def test_logprobs_are_those_of_transformers_over_two_turns(rig):
    talk = rig.agent.begin()
    talk.observe([user("a", image(84, 56), "b")])
    await rig.answer(talk)
    talk.observe([user(image(28, 56), "c", image(84, 56, seed=1))])
    await rig.answer(talk)
    assert rig.distance(0, talk) < rig.tolerance
    (sequence,) = talk.sequences()
    assert [placed.stop - placed.start for placed in sequence.images] == [6, 2, 6]
    # That images matter at all: with the two of one size exchanged, nothing is as it was.
    first, second, third = sequence.images
    exchanged = (replace(first, image=third.image), second, replace(third, image=first.image))
    others = rig.logprobs(0, replace(sequence, images=exchanged))
    assert np.abs(others - sequence.logprobs)[sequence.is_action].max() > 100 * rig.tolerance


@on_vllm
async def test_a_processor_that_expands_otherwise_is_told(rig):
    placed = PlacedImage(image(84, 56), 1, 4, (261,))  # 3 tokens, where there should be 6
    ids = np.array([65, 261, 261, 261, 66], np.int32)
    with pytest.raises(EngineError, match=r"expands the 1 images of .* a prompt of 8 tokens"):
        await rig.engine.generate(ids, Sampling(4), (placed,))
    with pytest.raises(EngineError, match="cannot read the images"):
        await rig.engine.generate(ids, Sampling(4), (replace(placed, marker=(66,)),))


@on_vllm
@pytest.mark.parametrize("mode", [UpdateMode.DRAIN, UpdateMode.RECOMPUTE, UpdateMode.KEEP])
async def test_after_an_update_the_same_image_is_encoded_anew(rig, mode):
    """One image at each step, the last context still in the caches; and a request that runs on over the update."""
    before = len(rig.models) - 1

    def talk_of(seed: int):
        talk = rig.agent.begin()
        talk.observe([user("a" * 130, image(84, 56, seed=seed), "b")])  # more than a block of what is kept
        return talk

    first = talk_of(0)
    await rig.answer(first)
    assert rig.distance(before, first) < rig.tolerance
    running = talk_of(1)
    task = asyncio.create_task(rig.answer(running, 80))
    if mode is not UpdateMode.DRAIN:
        await sampled(rig.engine, 8)
    await rig.update(mode)
    again = talk_of(0)
    await rig.answer(again)
    assert again.sequences()[0].versions.max() == before + 1
    assert rig.distance(before + 1, again) < rig.tolerance
    completion = await task
    if mode is UpdateMode.RECOMPUTE:
        assert len(ends_of(completion.versions)) == 1
        assert rig.distance(before, running) < rig.tolerance
        assert rig.distance(before + 1, running) < rig.tolerance


@on_vllm
@pytest.mark.parametrize("on_gpu", DEVICES)
async def test_adapters_of_the_language_model_are_followed(tmp_path, on_gpu):
    """Against peft, with images on both sides of an update that leaves the eyes as they were."""
    folder = make_vision_folder(tmp_path / "vision")
    rig = Rig(folder, on_gpu=on_gpu, adapter=Adapter(4, 8))
    rig.tolerance = 0.08 if on_gpu else 1e-4
    await rig.engine.start()
    try:
        settings = LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules="all-linear",
            exclude_modules=r"(.*\.)?visual(\..*)?",
            init_lora_weights=False,
        )
        for version in range(3):
            if version:
                torch.manual_seed(version)
                base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
                model = get_peft_model(base, settings)
                tensors = get_peft_model_state_dict(model)
                assert len(tensors) == 2 * 7 * 2
                dtype = torch.float16 if on_gpu else torch.float32
                await rig.send({name: tensor.to(dtype) for name, tensor in tensors.items()}, UpdateMode.DRAIN)
                rig.models.append(model)
            talk = rig.agent.begin()
            talk.observe([user("a" * 130, image(84, 56), "b")])  # the same at each version
            await rig.answer(talk)
            talk.observe([user(image(28, 56), "c")])
            await rig.answer(talk)
            assert talk.sequences()[0].versions.max() == version
            assert rig.distance(version, talk) < rig.tolerance
            if version:
                (sequence,) = talk.sequences()
                actions = sequence.is_action
                assert np.abs(rig.logprobs(version - 1, sequence) - sequence.logprobs)[actions].max() > 0.1
    finally:
        await rig.engine.close()
