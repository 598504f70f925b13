"""Images in the learner: a packed row scores each action as transformers does with that sequence alone."""

import numpy as np
import pytest
import torch
from peft import PeftModel
from PIL import Image as Pictures
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.images import ImageReader, PlacedImage
from turngym.agents.sequence import SequenceBuilder
from turngym.config import parse_train
from turngym.envs.images import as_image
from turngym.envs.task import Task
from turngym.errors import ConfigError
from turngym.executors.episodes.trajectory import EndReason, Trajectory, TurnEnd
from turngym.learner.batch import Batch, assemble, concatenate
from turngym.learner.models.attention import PACKED
from turngym.learner.models.hf_folder import save_hf
from turngym.learner.models.logprobs import action_logprobs
from turngym.learner.models.lora import Adapters, add_lora, disabled_adapters, quantization
from turngym.learner.models.vision import attention_for, freeze_eyes, policy_class, with_an_image
from turngym.learner.options import LoraOptions
from turngym.learner.run.inputs import check_inputs
from turngym.learner.run.plan import make_plan

from ...tiny_vision import make_vision_folder

pytestmark = pytest.mark.slow
PAD = 261


def image(width: int, height: int, seed: int = 0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return as_image(Pictures.fromarray(pixels))


def trajectory(reader: ImageReader, *turns) -> Trajectory:
    """Make an episode of turns, each of an image (or None) with a letter around it, and three sampled tokens."""
    builder, rng = SequenceBuilder(), np.random.default_rng(len(turns))
    for turn, seen in enumerate(turns):
        if seen is None:
            builder.add_context([65, 66], turn - 1)
        else:
            ids = reader.expanded(reader.token, seen)
            builder.add_context([65, 259, *ids, 260, 66], turn - 1, [PlacedImage(seen, 2, 2 + len(ids), (PAD,))])
        ids = rng.integers(0, 256, 3).astype(np.int32)
        completion = Completion(ids, np.full(3, -1.0, np.float32), np.zeros(3, np.int32), StopReason.STOP)
        builder.add_completion(completion, Sampling(3, temperature=0.7), turn)
    return Trajectory(
        Task(id="t"),
        0,
        (builder.build(),),
        (),
        np.zeros(len(turns)),
        (TurnEnd.STOP,) * len(turns),
        EndReason.TERMINATED,
    )


def packed(folder, **options):
    config = AutoConfig.from_pretrained(folder)
    attention = attention_for(config, PACKED)
    return policy_class(config).from_pretrained(folder, dtype=torch.float32, attn_implementation=attention, **options)


def specs(given) -> list[tuple[str, tuple[int, ...]]]:
    return [(spec.name, spec.shape) for spec in given]


def alone(model, reader: ImageReader, sequence) -> torch.Tensor:
    """Return the logprobs of a sequence's actions at temperature 0.7, as transformers has them by itself."""
    ids = torch.tensor(sequence.token_ids)[None].long()
    types = torch.zeros_like(ids)
    for placed in sequence.images:
        types[0, placed.start : placed.stop] = 1
    given = {}
    if sequence.images:
        given = {**reader.model_inputs([p.image for p in sequence.images]), "mm_token_type_ids": types}
    logits_TV = model(ids, **given).logits[0]
    actions = sequence.is_action.nonzero()[0]
    logprobs = (logits_TV[actions - 1] / 0.7).log_softmax(-1)
    return logprobs.gather(1, ids[0, actions, None])[:, 0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_vision_folder(tmp_path_factory.mktemp("vision"))


def other_kind(folder, kind: str, tmp_path):
    """Make a folder of another kind of model with the same tokenizer and processor."""
    given = AutoConfig.from_pretrained(folder).to_dict()
    text = {key: value for key, value in given["text_config"].items() if key not in ("model_type", "layer_types")}
    ids = {key: value for key, value in given.items() if key.endswith("_token_id")}
    vision = {"depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 96, "patch_size": 14}
    if kind == "qwen2_5_vl":
        vision |= {"out_hidden_size": 64, "fullatt_block_indexes": [1], "window_size": 56}
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids))
    else:
        vision |= {"out_hidden_size": 64, "deepstack_visual_indexes": [0], "num_position_embeddings": 64}
        text |= {"head_dim": 32, "rope_parameters": {**text["rope_parameters"], "mrope_interleaved": True}}
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **ids))
    for file in folder.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_packed_logprobs_are_those_of_each_sequence_alone(folder, kind, tmp_path):
    if kind != "qwen2_vl":
        folder = other_kind(folder, kind, tmp_path)
    reader, model = ImageReader(str(folder)), packed(folder)
    trajectories = [
        trajectory(reader, image(84, 56), image(28, 56)),
        trajectory(reader, None),
        trajectory(reader, None, image(56, 84, seed=1), None),
    ]
    batch = assemble(trajectories)
    scored = action_logprobs(model, batch, "cpu").logprobs_N.detach().numpy()[batch.is_action]
    reference = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    wanted = np.concatenate([alone(reference, reader, t.sequences[0]).detach() for t in trajectories])
    assert np.abs(scored - wanted).max() < 1e-4
    # The order of a selection is that of its images.
    swapped = batch.select([2, 0])
    scored = action_logprobs(model, swapped, "cpu").logprobs_N.detach().numpy()[swapped.is_action]
    assert np.abs(scored - np.concatenate([wanted[9:], wanted[:6]])).max() < 1e-4
    text_only = batch.select([1])
    scored = action_logprobs(model, text_only, "cpu").logprobs_N.detach().numpy()[text_only.is_action]
    assert np.abs(scored - wanted[6:9]).max() < 1e-4


def test_gradients_reach_the_eyes_of_every_rank(folder):
    """A rank whose part has no image, or nothing at all, runs the same parts of the model, forward and backward."""
    reader, model = ImageReader(str(folder)), packed(folder)
    batch = assemble([trajectory(reader, image(84, 56)), trajectory(reader, None)])
    sizes = []
    for part in (batch.select([0]), batch.select([1]), batch.select([])):
        model.zero_grad()
        action_logprobs(model, part, "cpu").logprobs_N.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        sizes.append(float(model.model.visual.patch_embed.proj.weight.grad.abs().sum()))
    assert sizes[0] > 0
    assert sizes[1:] == [0.0, 0.0]
    assert with_an_image(model, batch) is batch


def test_batches_with_and_without_images_are_laid_together(folder):
    reader = ImageReader(str(folder))
    seen, blind = (assemble([trajectory(reader, one)]) for one in (image(28, 28), None))
    assert blind.images == ()
    both = concatenate([blind, seen])
    assert [len(images) for images in both.images] == [0, 1]
    assert both.select([1]).images == seen.images
    assert isinstance(both, Batch)


def test_frozen_eyes_get_no_gradient(folder):
    reader, model = ImageReader(str(folder)), packed(folder)
    assert freeze_eyes(model) == len(list(model.model.visual.parameters()))
    action_logprobs(model, assemble([trajectory(reader, image(84, 56))]), "cpu").logprobs_N.sum().backward()
    assert all(parameter.grad is None for parameter in model.model.visual.parameters())
    assert model.lm_head.weight.grad is not None
    with pytest.raises(ConfigError, match="Linear has no visual encoder"):
        freeze_eyes(torch.nn.Linear(1, 1))


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_adapters_on_the_language_model_are_those_of_peft(folder, kind, tmp_path):
    """Logprobs and gradients of a packed row, what engines get and what is saved, against peft by the sequence."""
    if kind != "qwen2_vl":
        folder = other_kind(folder, kind, tmp_path)
    reader, model = ImageReader(str(folder)), packed(folder)
    trajectories = [trajectory(reader, image(84, 56), image(28, 56)), trajectory(reader, None)]
    batch = assemble(trajectories)
    before = action_logprobs(model, batch, "cpu").logprobs_N.detach()
    add_lora(model, LoraOptions(rank=4, alpha=8))
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 2 * 7 * 2  # A and B of seven linear layers in each of two blocks
    assert all(name.startswith("model.language_model.layers.") for name in trained)
    assert torch.equal(action_logprobs(model, batch, "cpu").logprobs_N.detach(), before)
    torch.manual_seed(0)
    for name, parameter in trained.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapters, parameters = Adapters(model), dict(model.named_parameters())
    tensors = {name: parameters[adapters.parts(name)[0]] for name, _ in specs(adapters.adapter_specs(parameters))}
    adapters.save(tmp_path / "adapter", str(folder), tensors)

    reference = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    reference = PeftModel.from_pretrained(reference, tmp_path / "adapter", is_trainable=True)
    action_N = torch.tensor(batch.is_action)
    scored_N = action_logprobs(model, batch, "cpu").logprobs_N
    wanted = torch.cat([alone(reference, reader, t.sequences[0]) for t in trajectories])
    assert (scored_N[action_N] - wanted).abs().max() < 1e-4
    assert (scored_N - before)[action_N].abs().max() > 0.01
    scored_N[action_N].sum().backward()
    wanted.sum().backward()
    theirs = {name.replace("base_model.model.", "", 1): p.grad for name, p in reference.named_parameters()}
    for name, parameter in trained.items():
        assert torch.allclose(parameter.grad, theirs[name], rtol=1e-3, atol=1e-4 * float(theirs[name].abs().max()))
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained.keys()
    with disabled_adapters(model):
        assert torch.equal(action_logprobs(model, batch, "cpu").logprobs_N.detach(), before)

    whole = reference.merge_and_unload().state_dict()
    for name, shape in specs(adapters.merged_specs(parameters)):
        merged = adapters.merge(name, {part: parameters[part].detach() for part in adapters.parts(name)})
        assert tuple(merged.shape) == shape
        assert torch.allclose(merged, whole[name], atol=1e-6), name
    assert {name for name, _ in specs(adapters.merged_specs(parameters))} == whole.keys()


def test_in_4_bits_engines_get_what_learns(folder):
    """The eyes are rounded too; what is merged for the engines holds them as they are computed with."""
    pytest.importorskip("bitsandbytes", reason="weights in 4 bits need bitsandbytes: pip install 'turngym[qlora]'")
    reader, given = ImageReader(str(folder)), quantization(torch.float32)
    model = add_lora(packed(folder, quantization_config=given), LoraOptions(rank=4, alpha=8))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    adapters, parameters = Adapters(model), dict(model.named_parameters())
    merged = {
        name: adapters.merge(name, {part: parameters[part] for part in adapters.parts(name)})
        for name, _ in specs(adapters.merged_specs(parameters))
    }
    plain = packed(folder)
    qkv = "model.visual.blocks.0.attn.qkv.weight"
    assert (merged[qkv] - plain.state_dict()[qkv]).abs().max() > 0.01
    plain.load_state_dict(merged)
    batch = assemble([trajectory(reader, image(84, 56), image(28, 56)), trajectory(reader, None)])
    ours, theirs = (action_logprobs(each, batch, "cpu").logprobs_N.detach() for each in (model, plain))
    assert (ours - theirs)[torch.tensor(batch.is_action)].abs().max() < 1e-4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--ds.lora.rank 8", None),
        ("--algo.advantage.estimator gae", "wants a critic"),
        ("", None),
        ("--actor.freeze_visual_encoder", None),
    ],
)
def test_what_cannot_be_trained_is_refused_at_the_start(folder, tmp_path, words, says):
    common = f"--agent env:Guess --data.max_len 256 --actor.model_name_or_path {folder}"
    settings = parse_train(f"{common} --ckpt.output_dir {tmp_path / 'r'} {words}".split())
    if says is None:
        assert make_plan(settings, check_inputs(settings)) is not None
        return
    with pytest.raises(ConfigError, match=says):
        make_plan(settings, check_inputs(settings))


def test_a_model_of_text_alone_is_refused_images_at_the_start(tiny_model, tmp_path):
    common = f"--data.max_len 256 --actor.model_name_or_path {tiny_model} --ckpt.output_dir {tmp_path / 'r'}"
    settings = parse_train(f"{common} --agent env:Guess --actor.freeze_visual_encoder".split())
    with pytest.raises(ConfigError, match=r"--actor\.freeze_visual_encoder: .* which has none"):
        make_plan(settings, check_inputs(settings))
    image(4, 4).to_pil().save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text('{"input": "what?", "label": "a", "image": "a.png"}\n')
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return [0.0] * len(queries)\n")
    given = f"--data.prompt_dataset {tmp_path}/rows.jsonl --data.label_key label --data.image_key image"
    settings = parse_train(f"{common} {given} --reward.remote_url {tmp_path}/reward.py".split())
    with pytest.raises(ConfigError, match=r"--data\.image_key: .* cannot be trained with images"):
        make_plan(settings, check_inputs(settings))


FILE = """
from openrlhf.utils.agent import AgentExecutorBase
class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine{}): return {{}}
{}"""
RUN_AGENT = "    async def run_agent(self, prompt, label, session_id): return {}\n"


@pytest.mark.usefixtures("without_openrlhf")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FILE.format(", images=None", ""), None),
        (FILE.format(", **more", ""), None),
        (FILE.format("", ""), r"execute of .* takes no images; give it the parameter 'images'"),
        (FILE.format(", images=None", RUN_AGENT), r"run_agent of .* takes no images; leave it out"),
    ],
)
def test_agent_files_that_take_no_images_are_refused_them_at_the_start(folder, tmp_path, text, says):
    (tmp_path / "agent_func.py").write_text(text)
    image(56, 56).to_pil().save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text('{"input": "what?", "label": "a", "images": "a.png"}\n')
    words = (
        f"--agent func:{tmp_path}/agent_func.py --data.max_len 256 --actor.model_name_or_path {folder} "
        f"--data.prompt_dataset {tmp_path}/rows.jsonl --data.image_key images --data.apply_chat_template "
        f"--ckpt.output_dir {tmp_path / 'r'} --rollout.batch_size 1 --train.batch_size 8"
    )
    settings = parse_train(words.split())
    if says is None:
        assert make_plan(settings, check_inputs(settings)) is not None
        return
    with pytest.raises(ConfigError, match=says):
        make_plan(settings, check_inputs(settings))


def test_what_was_trained_is_a_folder_that_reads_images(folder, tmp_path):
    model = packed(folder)
    tensors = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    save_hf(tmp_path / "out", str(folder), tensors)
    again = packed(tmp_path / "out")
    assert torch.equal(again.model.visual.patch_embed.proj.weight, tensors["model.visual.patch_embed.proj.weight"])
    ids = ImageReader(str(tmp_path / "out")).expanded("<|image_pad|>", image(84, 56))
    assert ids.tolist() == [PAD] * 6
