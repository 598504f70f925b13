"""OpenRLHF executors with images: the tokens and images of `execute` are those that the same agent has turn by turn."""

import asyncio

import numpy as np
import pytest
from PIL import Image as Pictures

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.chat import agent_for
from turngym.agents.images import PlacedImage, image_reader_of
from turngym.envs.images import as_image
from turngym.envs.messages import RawText
from turngym.envs.openrlhf.env import agent_file
from turngym.envs.task import Task
from turngym.errors import ImageError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import FailureKind, TurnEnd
from turngym.executors.own_agents.agent_engine import Sample, Samples
from turngym.executors.own_agents.agent_file import AgentFileExecutor, make_executor

from ...tiny_vision import PAD, PIXELS, make_vision_folder, vision_tokenizer

pytestmark = pytest.mark.usefixtures("without_openrlhf")

PLACE = f"<|vision_start|>{PAD}<|vision_end|>"
SAMPLING = Sampling(max_tokens=20)


def picture(width: int, height: int, seed: int = 0) -> Pictures.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height * PIXELS, width * PIXELS, 3), dtype=np.uint8)
    return Pictures.fromarray(pixels)


SHOWN = picture(2, 1)
TASK = Task(id="t", prompt=RawText(f"a{PLACE}b", [as_image(SHOWN)]), label="7")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_vision_folder(tmp_path_factory.mktemp("vision"), with_weights=False)


@pytest.fixture
def run(tmp_path, pool, folder):
    async def run(text: str, *answers: str, task: Task = TASK, sees: bool = True):
        file = tmp_path / f"agent_{len(list(tmp_path.iterdir()))}.py"  # an executor is made once for each path
        file.write_text(text)
        tokenizer = vision_tokenizer()
        agent = agent_for(tokenizer, images=image_reader_of(str(folder)) if sees else None)
        executor = make_executor(agent, agent_file(str(file), {}), pool, Limits(), tokenizer)
        replies = [tokenizer.encode(answer) for answer in answers]
        engine = ScriptedEngine([Reply(ids, -np.arange(1.0, len(ids) + 1)) for ids in replies])
        async with asyncio.timeout(60):
            return type(executor), await executor.run(task, 0, engine, SAMPLING), engine

    return run


# As OpenRLHF's own vision-language example: a screenshot after the second turn.
MULTI_TURN = f"""
import torch
from PIL import Image
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs): self.turn = 0
    async def step(self, states, **kwargs):
        self.turn += 1
        answer = {{"rewards": torch.tensor(float(self.turn)), "done": self.turn == 3}}
        if self.turn == 2:
            screenshot = Image.new("RGB", ({PIXELS}, {3 * PIXELS}), (self.turn, 0, 0))
            return answer | {{"environment_feedback": "see {PLACE}.", "environment_images": screenshot}}
        return answer | {{"environment_feedback": "."}}

class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self): super().__init__(AgentInstance)
"""
ITSELF = MULTI_TURN + "    async def execute(self, **asked): return await super().execute(**asked)\n"

# As an executor is written that has a loop of its own.
OWN = f"""
from PIL import Image
from openrlhf.utils.agent import AgentExecutorBase
from openrlhf.utils.vlm_utils import accumulate_mm_inputs, load_images, process_prompt_with_images

class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        assert hasattr(hf_tokenizer, "image_processor")
        tokens, inputs, pictures = process_prompt_with_images(hf_tokenizer, prompt, images)
        ranges = []
        for turn in range(1, 4):
            asked = {{"image": pictures}} if pictures else None
            output = (await llm_engine.generate(tokens, sampling_params, multi_modal_data=asked)).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(output.token_ids)))
            tokens = tokens + output.token_ids
            if turn == 2:
                screenshot = Image.new("RGB", ({PIXELS}, {3 * PIXELS}), (2, 0, 0))
                more, new, shown = process_prompt_with_images(hf_tokenizer, "see {PLACE}.", [screenshot, None])
                inputs, pictures = accumulate_mm_inputs(inputs, new), pictures + shown
            else:
                more = hf_tokenizer(text=".", add_special_tokens=False, return_tensors="pt")["input_ids"][0].tolist()
            tokens = tokens + more
        assert [len(pictures), *inputs["image_grid_thw"].shape] == [2, 2, 3]
        return {{
            "prompt": prompt, "label": label, "images": images, "mm_train_inputs": inputs, "reward": 6.0,
            "observation_tokens": tokens, "action_ranges": ranges, "rollout_log_probs": None,
        }}
"""


@pytest.mark.slow
async def test_three_ways_to_write_an_agent_give_the_same_tokens_and_images(run):
    ran = [await run(text, "x", "yz", "w<|im_end|>") for text in (MULTI_TURN, ITSELF, OWN)]
    assert [kind for kind, *_ in ran] == [MultiTurn, AgentFileExecutor, AgentFileExecutor]
    assert [trajectory.failure for _, trajectory, _ in ran] == [None] * 3
    first = ran[0][1].sequences[0]
    ids = vision_tokenizer().encode
    before, between = "a<|vision_start|>", "<|vision_end|>bx.yzsee <|vision_start|>"
    assert first.token_ids.tolist() == ids(f"{before}{PAD * 2}{between}{PAD * 3}<|vision_end|>.w<|im_end|>.")
    screenshot = Pictures.new("RGB", (PIXELS, 3 * PIXELS), (2, 0, 0))
    starts = [len(ids(before)), len(ids(f"{before}{PAD * 2}{between}"))]
    for _, trajectory, engine in ran:
        (sequence,) = trajectory.sequences
        for array in ("token_ids", "is_action", "logprobs", "versions", "turn"):
            np.testing.assert_array_equal(getattr(sequence, array), getattr(first, array), array)
        assert [(placed.start, placed.stop) for placed in sequence.images] == [
            (at, at + n) for at, n in zip(starts, (2, 3), strict=True)
        ]
        assert [placed.image for placed in sequence.images] == [as_image(SHOWN), as_image(screenshot)]
        assert [placed.marker for placed in sequence.images] == [tuple(ids(PAD))] * 2
        assert [tuple(request.images) for request in engine.requests] == [sequence.images[:1]] * 2 + [sequence.images]
        assert trajectory.reward == 6


EXECUTOR = """
from openrlhf.utils.agent import AgentExecutorBase
class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        from openrlhf.utils.vlm_utils import process_prompt_with_images
        PAD = hf_tokenizer.image_token
        tokens, inputs, pictures = process_prompt_with_images(hf_tokenizer, prompt, images)
        data = {{"image": pictures}}
        {}
        output = (await llm_engine.generate(tokens, sampling_params, multi_modal_data=data)).outputs[0]
        ids, more = output.token_ids, []
        {}
        ranges = [(len(tokens), len(tokens + ids))]
        return {{"observation_tokens": tokens + ids + more, "action_ranges": ranges, "reward": 1}}
"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("data = None", "", "hold more places than their 0 images"),
        ("data = {'image': pictures * 2}", "", "2 images came with tokens that hold 1"),
        ("data = {'video': pictures}", "", "generate takes images alone"),
        ("data = {'image': ['https://x/y.png']}", "", "not fetched from the net"),
        ("tokens = hf_tokenizer.encode(prompt)", "", "tokenise texts together with their images"),
        ("tokens = tokens + hf_tokenizer.encode(PAD)", "", "hold more places than their 1 images"),
        ("from PIL import Image; data = {'image': [Image.new('RGB', (28, 56))] + pictures}", "", "2 images came with"),
        ("", "tokens = [t for t in tokens if t != hf_tokenizer.encode(PAD)[0]]", "the engine did not sample them"),
    ],
)  # fmt: skip
async def test_images_that_do_not_go_with_their_tokens(run, before, after, message):
    _, trajectory, _ = await run(EXECUTOR.format(before, after), "x")
    assert trajectory.failure.kind is FailureKind.ENV
    assert message in trajectory.failure.message


async def test_what_nobody_answered_ends_before_an_image_that_the_engine_was_not_shown(run):
    after = "more = hf_tokenizer.encode('.' + PAD * 4 + '.')"
    _, trajectory, _ = await run(EXECUTOR.format("", after), "x")
    assert vision_tokenizer().decode(trajectory.sequences[0].token_ids).endswith("b" + "x.")


async def test_a_place_for_an_image_that_the_model_wrote(run):
    _, trajectory, _ = await run(EXECUTOR.format("", ""), f"x{PAD}")
    assert f"wrote '{PAD}' itself" in trajectory.failure.message


async def test_files_and_models_that_take_no_images(run):
    blind = EXECUTOR.format("", "").replace(", images=None", "").replace("(hf_tokenizer, prompt, images)", "(1, 2, 3)")
    _, trajectory, _ = await run(blind, "x")
    assert "takes no images, and its prompt has some" in trajectory.failure.message
    text = (
        EXECUTOR.format("tokens, data = hf_tokenizer.encode('a'), {}", "")
        .replace("process_prompt_with_images(hf_tokenizer, prompt, images)", "(None, None, None)")
        .replace("PAD = ", "# ")
    )
    plain = Task(id="t", prompt="a", label="")
    _, trajectory, _ = await run(text, "x", task=plain, sees=False)
    assert trajectory.failure is None
    _, trajectory, _ = await run(ITSELF, "x", sees=False)
    assert "this model reads text only" in trajectory.failure.message


def test_images_of_one_size_are_told_apart_by_the_episode_that_showed_them():
    ids, said = np.array([1, 261, 2], np.int32), np.array([65], np.int32)
    completion = Completion(said, np.zeros(1, np.float32), np.zeros(1, np.int32), StopReason.STOP)
    samples, images = Samples(), [as_image(picture(1, 1, seed)) for seed in range(2)]
    number = samples.begin()
    for owner, image in enumerate(images):
        placed = (PlacedImage(image, 1, 2, (261,)),)
        samples.add(Sample(ids, completion, SAMPLING, TurnEnd.STOP, owner, placed))
    for owner, image in enumerate(images):
        found = samples.find(ids, said, owner)
        assert found is not None
        assert found.images[0].image == image
    with pytest.raises(ImageError, match="different images of one size"):
        samples.find(ids, said, "another")
    samples.end(number)
