"""Images through the real clients of all three APIs: one conversation, one sequence, each image at its place."""

import base64
import io

import anthropic
import numpy as np
import openai
import pytest
from PIL import Image as Pictures

from turngym.agents.images import ImageReader
from turngym.envs.images import as_image

from ...tiny_vision import make_vision_folder


def picture(width: int, height: int, seed: int = 0) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Pictures.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


RED, BLUE = picture(56, 28), picture(56, 28, seed=1)  # of one size, so that their tokens are alike


@pytest.fixture
async def talk_and_clients(served, tmp_path):
    reader = ImageReader(str(make_vision_folder(tmp_path, with_weights=False)))
    talk, server = await served("vision", ["one", "two", "three", "four"], images=reader)
    of_openai = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    of_anthropic = anthropic.AsyncAnthropic(base_url=f"{server.url}/s/s", api_key=server.key, max_retries=0)
    return talk, of_openai, of_anthropic


@pytest.mark.slow
async def test_three_apis_go_on_from_each_other(talk_and_clients):
    talk, of_openai, of_anthropic = talk_and_clients
    first = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": url(RED), "detail": "low"}}]
    history = [{"role": "user", "content": first}]
    await of_openai.chat.completions.create(model="m", messages=history)
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    again = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    turns = [
        {"role": "user", "content": again},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "image", "source": {**source, "data": base64.b64encode(BLUE).decode()}}]},
    ]
    counted = await of_anthropic.messages.count_tokens(model="m", messages=turns)
    second = await of_anthropic.messages.create(model="m", max_tokens=50, messages=turns)
    assert counted.input_tokens == second.usage.input_tokens == len(talk.engine.requests[1].prompt_ids)
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": url(RED)}],
        },
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": [{"type": "input_image", "image_url": url(BLUE)}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "and now?"},
    ]
    await of_openai.responses.create(model="m", input=items)
    requests = talk.engine.requests
    assert [len(request.images) for request in requests] == [1, 2, 2]
    (sequence,) = talk.session.record().sequences
    assert sequence.num_actions == sum(map(len, talk.replies))
    assert [placed.image for placed in sequence.images] == [as_image(RED), as_image(BLUE)]
    for placed in requests[2].images:
        assert talk.tokenizer.decode(sequence.token_ids[placed.start : placed.stop]) == "<|image_pad|>" * 2


@pytest.mark.slow
async def test_another_image_is_another_branch(talk_and_clients):
    talk, of_openai, _ = talk_and_clients

    async def ask(*images):
        contents = [[{"type": "image_url", "image_url": {"url": url(image)}}] for image in images]
        messages = [{"role": "user", "content": contents[0]}]
        for number, content in zip(("one", "two"), contents[1:], strict=False):
            messages += [{"role": "assistant", "content": number}, {"role": "user", "content": content}]
        await of_openai.chat.completions.create(model="m", messages=messages)

    await ask(RED)
    await ask(RED, RED)
    await ask(RED, BLUE)  # goes on from the first answer, too, with another image of that size
    await ask(BLUE)
    record = talk.session.record()
    assert [[placed.image for placed in each.images] for each in record.sequences] == [
        [as_image(RED), as_image(RED)],
        [as_image(RED), as_image(BLUE)],
        [as_image(BLUE)],
    ]
    same, other = record.sequences[:2]
    assert same.token_ids[~same.is_action].tolist() == other.token_ids[: len(same)][~same.is_action].tolist()
    assert other.parent == (0, other.images[1].start)
    assert record.turns == ((0, 1), (0, 2), (3,))


@pytest.mark.slow
async def test_what_cannot_be_shown_is_refused(talk_and_clients, served):
    talk, of_openai, _ = talk_and_clients

    async def refused(client, image_url, says):
        content = [{"type": "image_url", "image_url": {"url": image_url}}]
        with pytest.raises(openai.BadRequestError, match=says):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])

    await refused(of_openai, "https://example.org/a.png", "wanted as a data: URL")
    await refused(of_openai, "/etc/passwd", "wanted as a data: URL")
    await refused(of_openai, url(b"text"), "no image of PNG")
    await refused(of_openai, url(RED[:-80]), "cannot be read to its end")
    blind, server = await served("qwen2_5")
    client = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    await refused(client, url(RED), "this model reads text only")
    assert not talk.engine.requests
    assert not blind.engine.requests
    content = [{"type": "image_url", "image_url": {"url": url(RED)}}]
    await of_openai.chat.completions.create(model="m", messages=[{"role": "user", "content": content}])
    ids = talk.engine.requests[0].prompt_ids.tolist() + talk.replies[0]
    with pytest.raises(openai.BadRequestError, match="stands for an image"):  # its tokens, and not the image
        await of_openai.completions.create(model="m", prompt=ids)
