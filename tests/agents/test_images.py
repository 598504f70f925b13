"""Images in conversations: whatever form they come in, the ids are those of the model's own processor."""

import base64
import io
import pickle

import numpy as np
import pytest
from PIL import Image as Pictures

from turngym.agents.chat import ChatAgent
from turngym.agents.images import ImageReader, fingerprint, image_reader_of, load_processor
from turngym.agents.prompt_text import with_text_prompts
from turngym.agents.sequence import common_length
from turngym.envs.images import Image, as_image, image_in
from turngym.envs.messages import RawText
from turngym.envs.task import Task
from turngym.errors import ImageError

from ..tiny_vision import PAD, make_vision_folder, vision_tokenizer
from .conftest import SAMPLING

TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}


def picture(width: int, height: int, seed: int = 0) -> Pictures.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Pictures.fromarray(pixels)


def png(value: Pictures.Image) -> bytes:
    file = io.BytesIO()
    value.save(file, "PNG")
    return file.getvalue()


def user(*parts) -> dict:
    given = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"role": "user", "content": given}


def shown(value) -> dict:
    return {"type": "image", "image": value}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_vision_folder(tmp_path_factory.mktemp("vision"), with_weights=False)


@pytest.fixture
def agent(folder):
    return ChatAgent(vision_tokenizer(), images=image_reader_of(str(folder)))


def test_every_form_is_the_same_image(tmp_path):
    data = png(picture(30, 20))
    (tmp_path / "a.png").write_bytes(data)
    text = base64.b64encode(data).decode()
    url = f"data:image/png;base64,{text}"
    forms = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}},
        {"type": "image", "base64": text},
        {"type": "image", "path": str(tmp_path / "a.png")},
        {"type": "image", "image": tmp_path / "a.png"},
        {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/a.png"}},
        {"type": "image", "image": {"bytes": data, "path": None}},
        {"type": "image", "image": data},
    ]
    images = {image_in(form, is_trusted=True) for form in forms}
    (image,) = images
    assert repr(image) == f"Image(30x20, {image.digest})"
    again = pickle.loads(pickle.dumps(image))
    assert again == image
    assert hash(again) == hash(image)
    for form in forms[:5]:
        assert image_in(form, is_trusted=False) == image
    for form in forms[5:8]:
        with pytest.raises(ImageError, match="wanted as a data: URL"):
            image_in(form, is_trusted=False)
    assert image_in({"type": "text", "text": "image"}, is_trusted=False) is None


def test_pixels_of_arrays_and_pictures_come_back():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(as_image(pixels).to_pil()), pixels)
    assert as_image(pixels) == as_image(Pictures.fromarray(pixels))
    clear = np.zeros((2, 2, 4), np.uint8)
    clear[0, 0] = (10, 20, 30, 255)
    on_white = np.asarray(as_image(clear).to_pil())
    assert on_white[0, 0].tolist() == [10, 20, 30]
    assert on_white[1, 1].tolist() == [255, 255, 255]
    turned = io.BytesIO()
    exif = Pictures.Exif()
    exif[0x0112] = 6  # the camera was held upright
    picture(30, 20).save(turned, "JPEG", exif=exif)
    assert as_image(turned.getvalue()).to_pil().size == (20, 30)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"GIF89a", "6 bytes are no image of PNG, JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of PNG"),  # would run Ghostscript
        ("https://example.org/a.png", "not fetched from the net"),
        ("/nowhere/a.png", "there is no image"),
        ("data:image/png,abc", "reads 'data:image/png;base64"),
        ("data:image/png;base64,?", "no base64"),
        (np.zeros((2, 2, 3), np.float64), "wanted uint8"),
        (3, "a int is no image"),
        (None, "a NoneType is no image"),
    ],
)
def test_what_is_no_image_is_refused(value, says):
    with pytest.raises(ImageError, match=says):
        as_image(value)


def test_ids_are_those_of_the_processor(agent, folder, completion_of):
    """The whole conversation, given to transformers at once, has the same ids; each image knows its place."""
    first, second = picture(84, 56), picture(28, 56)  # 3 x 2 and 1 x 2 tokens
    talk = agent.begin()
    talk.observe([{"role": "system", "content": "s"}, user("a", shown(first), "b")])
    answer = vision_tokenizer().encode("yes<|im_end|>")
    talk.record(completion_of(answer), SAMPLING)
    talk.observe([user(shown(second), "c", shown(first))])

    processor = load_processor(str(folder))
    text = (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|vision_start|><|image_pad|><|vision_end|>b<|im_end|>\n"
        "<|im_start|>assistant\nyes<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>c"
        "<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    wanted = processor(text=[text], images=[first, second, first])["input_ids"][0]
    assert talk.prompt_ids().tolist() == wanted

    pad = vision_tokenizer().convert_tokens_to_ids(PAD)
    images = talk.prompt_images()
    assert [placed.image for placed in images] == [as_image(first), as_image(second), as_image(first)]
    assert [placed.stop - placed.start for placed in images] == [6, 2, 6]
    for placed in images:
        assert placed.marker == (pad,)
        assert set(wanted[placed.start : placed.stop]) == {pad}
        assert wanted[placed.start - 1] != pad
        assert wanted[placed.stop] != pad
    (sequence,) = talk.sequences()
    assert sequence.images == images
    assert sequence.num_actions == len(answer)
    assert talk.messages[-1]["content"][0] == shown(as_image(second))
    assert len(sequence.cut(images[1].start + 1)) == images[1].start  # no part of an image
    assert sequence.cut(images[1].stop).images == images[:2]


def test_images_go_with_their_places_when_history_is_rewritten(folder, completion_of):
    """The template takes the thought of the first answer out: what stands before it stays, images included."""
    drops = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set c = m.content %}{% if c is string %}"
        "{{ c if m.role != 'assistant' or loop.last else c.split('</think>')[-1] }}{% else %}{% for p in c %}"
        "{{ '<|vision_start|><|image_pad|><|vision_end|>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = vision_tokenizer(drops)
    talk = ChatAgent(tokenizer, images=ImageReader(str(folder))).begin()
    talk.observe([user("a", shown(picture(56, 56)))])
    talk.record(completion_of(tokenizer.encode("<think>t</think>x<|im_end|>")), SAMPLING)
    twin = talk.fork()
    talk.observe([user(shown(picture(28, 28)))])
    before, after = talk.sequences()
    assert after.parent is not None
    assert [placed.stop - placed.start for placed in after.images] == [4, 1]
    assert after.images[0] == before.images[0]
    assert before.images[0].stop < after.parent[1]
    assert len(twin.sequences()) == 1
    assert len(twin.prompt_images()) == 1

    # Another image of that size has the same ids, and is another context all the same.
    twin.observe([user(shown(picture(28, 28, seed=1)))])
    other = twin.sequences()[1]
    assert other.token_ids.tolist() == after.token_ids.tolist()
    assert common_length(other.token_ids, after.token_ids, other.images, after.images) == after.images[1].start
    assert fingerprint(other.token_ids, other.images) != fingerprint(after.token_ids, after.images)


def test_a_place_for_an_image_that_nobody_put_there_is_refused(agent, completion_of):
    pad = vision_tokenizer().convert_tokens_to_ids(PAD)
    talk = agent.begin()
    with pytest.raises(ImageError, match="1 images became 2 places"):
        talk.observe([user(shown(picture(28, 28)), f"see {PAD}")])
    with pytest.raises(ImageError, match="or a text holds it"):
        agent.begin().observe(RawText(f"see {PAD}"))
    talk = agent.begin()
    talk.observe([user(shown(picture(28, 28)))])
    with pytest.raises(ImageError, match="the model wrote it itself"):
        talk.fork().record(completion_of([65, pad]), SAMPLING)
    with pytest.raises(ImageError, match="or a text holds it"):
        talk.fork().observe(RawText(PAD))
    late = agent.begin()
    late.observe([user("a")])
    late.record(completion_of([pad, 66]), SAMPLING)  # where no image is, it is a token like others
    with pytest.raises(ImageError, match="1 images became 2 places"):
        late.fork().observe([user(shown(picture(28, 28)))])
    late.observe(RawText("x"))  # no template is asked about what came before
    with pytest.raises(ImageError, match="the model wrote it itself"):
        late.observe([user(shown(picture(28, 28)))])


def test_raw_text_has_places_for_its_images(agent, completion_of):
    """As OpenRLHF's feedback: appended as it is, but for the images."""
    talk = agent.begin()
    talk.observe(RawText(f"a{PAD}b{PAD}", [picture(56, 28), picture(28, 28)]))
    pad = vision_tokenizer().convert_tokens_to_ids(PAD)
    a, b = vision_tokenizer().encode("ab")
    assert talk.prompt_ids().tolist() == [a, pad, pad, b, pad]
    assert [(placed.start, placed.stop) for placed in talk.prompt_images()] == [(1, 3), (4, 5)]
    again = pickle.loads(pickle.dumps(RawText(PAD, [as_image(picture(28, 28))])))
    talk.record(completion_of([a]), SAMPLING)
    talk.observe(again)
    assert len(talk.sequences()[0].images) == 3
    with pytest.raises(ImageError, match="1 images became 0 places"):
        talk.observe(RawText("a", again.images))
    with pytest.raises(ImageError, match="this model reads text only"):
        ChatAgent(vision_tokenizer()).begin().observe(again)


def test_a_datasets_prompt_becomes_text_with_its_images(folder):
    prompt = [user(shown(picture(28, 28)), "what?")]
    (task,) = with_text_prompts([Task(id="t", prompt=prompt)], str(folder))
    asked = f"<|im_start|>user\n<|vision_start|>{PAD}<|vision_end|>what?<|im_end|>\n"
    assert task.prompt == f"{asked}<|im_start|>assistant\n"
    assert task.prompt.images == (as_image(picture(28, 28)),)


def test_images_of_tools_stand_among_their_results(agent):
    """The tiny template knows no tools: the user says what they gave."""
    talk = agent.begin([TOOL])
    talk.observe([user("a")])
    result = [{"type": "text", "text": "seen: "}, shown(picture(28, 28))]
    talk.observe([{"role": "tool", "name": "look", "tool_call_id": "1", "content": result}])
    text = vision_tokenizer().decode(talk.prompt_ids())
    wanted = f"<tool_response>\nseen: <|vision_start|>{PAD}<|vision_end|>\n</tool_response>"
    assert wanted in text or f"tool\nseen: <|vision_start|>{PAD}<|vision_end|>" in text
    assert len(talk.prompt_images()) == 1


def test_a_model_of_text_alone_refuses_images(folder, tokenizer_of):
    with pytest.raises(ImageError, match="this model reads text only"):
        ChatAgent(vision_tokenizer()).begin().observe([user(shown(picture(28, 28)))])
    blind = vision_tokenizer(
        "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}"
    )
    with pytest.raises(ImageError, match="leaves images out"):
        ChatAgent(blind, images=ImageReader(str(folder))).begin().observe([user("a", shown(picture(28, 28)))])


def test_broken_bytes_and_hopeless_shapes_are_told(agent):
    data = png(picture(280, 280))
    with pytest.raises(ImageError, match="cannot be read to its end"):
        agent.begin().observe([user(shown(data[:400]))])
    with pytest.raises(ImageError, match="does not take images of 4000x4"):
        agent.begin().observe([user(shown(picture(4000, 4)))])


def test_images_are_equal_by_their_bytes_alone():
    image = as_image(picture(8, 8))
    assert image != as_image(picture(8, 8, seed=1))
    assert image == Image(image.data, 8, 8)
    assert image != image.data
