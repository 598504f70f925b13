"""The server as the real `anthropic` client sees it, checked against the types of that package."""

import anthropic
import numpy as np
import openai
import pytest
from anthropic.types import Message

CALL = '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo", "deep": {"b": 1.0}}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"
TOOLS = [{"name": "time", "description": "The time.", "input_schema": {"type": "object", "properties": {}}}]


def client_of(server) -> anthropic.AsyncAnthropic:
    base_url = server.session_url("s").removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base_url, api_key=server.key, max_retries=0)


async def test_a_conversation_with_tools_is_one_sequence_in_either_api(served):
    talk, server = await served("qwen2_5", [f"{THOUGHT}Let me see.\n{CALL}", "Noon.", "Bye"])
    client = client_of(server)
    asked = {"model": "m", "max_tokens": 200, "system": [{"type": "text", "text": "Be brief."}], "tools": TOOLS}
    history = [{"role": "user", "content": "What time is it in Oslo?"}]
    first = await client.messages.create(**asked, messages=history)
    Message.model_validate(first.model_dump(), strict=True)
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
    thought, text, use = first.content
    assert (thought.thinking, text.text, use.name) == ("Hm.", "Let me see.", "time")
    assert use.input == {"place": "Oslo", "deep": {"b": 1.0}}
    assert (first.stop_reason, first.usage.output_tokens) == ("tool_use", len(talk.replies[0]))
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12:00"}]}
    said = [{"type": "text", "text": "Let me see. "}, {**use.model_dump(exclude_unset=True), "input": use.input}]
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    second = await client.messages.create(**asked, messages=history)
    assert (second.content[0].text, second.stop_reason) == ("Noon.", "end_turn")
    assert second.usage.input_tokens == len(talk.engine.requests[1].prompt_ids)
    other = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    call = {
        "id": use.id,
        "type": "function",
        "function": {"name": "time", "arguments": '{"deep":{"b":1},"place":"Oslo"}'},
    }
    tool = {"type": "function", "function": {**TOOLS[0], "parameters": TOOLS[0]["input_schema"]}}
    del tool["function"]["input_schema"]
    await other.chat.completions.create(
        model="m",
        tools=[tool],
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What time is it in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": use.id, "content": "12:00"},
            {"role": "assistant", "content": "Noon."},
            {"role": "user", "content": "Thanks"},
        ],
    )
    (sequence,) = talk.session.record().sequences
    assert sequence.token_ids[sequence.is_action].tolist() == [token for reply in talk.replies for token in reply]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Hi there, this is more than one piece of text.", THOUGHT, f"{THOUGHT}{CALL}", ""])
async def test_a_stream_says_what_one_answer_says(served, text):
    _, server = await served("qwen2_5", [text] * 2)
    client = client_of(server)
    asked = {"model": "m", "max_tokens": 200, "tools": TOOLS, "messages": [{"role": "user", "content": "a"}]}
    whole = await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    for block in [*final.content, *whole.content]:
        if block.type == "tool_use":
            block.id = ""  # each has its own
    kept = {"content", "stop_reason", "stop_sequence", "usage"}
    assert final.model_dump(include=kept) == whole.model_dump(include=kept)


async def test_sampling_stops_and_limits(served):
    talk, server = await served("qwen2_5", ["one STOP", "a" * 99])
    client = client_of(server)
    asked = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    answer = await client.messages.create(
        **asked,
        max_tokens=50,
        stop_sequences=["END", "STOP"],
        extra_body={"temperature": 0.5, "top_p": 0.5, "top_k": 4},
    )
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "STOP")
    sampling = talk.engine.requests[0].sampling
    assert (sampling.stop, sampling.temperature, sampling.top_p, sampling.top_k) == (("END", "STOP"), 0.5, 0.5, 4)
    cut = await client.messages.create(**asked, max_tokens=5)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    counted = await client.messages.count_tokens(**asked)
    assert counted.input_tokens == len(talk.engine.requests[0].prompt_ids)
    assert np.array_equal(talk.engine.requests[0].prompt_ids, talk.engine.requests[1].prompt_ids)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no such file", "Error: no such file"),
        ([{"type": "text", "text": "no"}], "Error: no"),
        ("", "Error"),
        ([], "Error"),
    ],
)
async def test_the_model_is_told_that_a_tool_failed(served, content, told):
    talk, server = await served()
    result = {"type": "tool_result", "tool_use_id": "a", "content": content}
    use = {"type": "tool_use", "id": "a", "name": "time", "input": {}}
    for is_error in (True, False):
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**result, "is_error": is_error}]},
        ]
        await client_of(server).messages.create(model="m", max_tokens=9, messages=messages)
    failed, fine = talk.prompts()
    assert f"<tool_response>\n{told}\n</tool_response>" in failed
    assert "Error" not in fine


async def test_refusals_have_anthropics_form(served):
    talk, server = await served()
    client = client_of(server)
    asked = {"model": "m", "max_tokens": 5}
    with pytest.raises(anthropic.BadRequestError, match="never continued") as refused:
        await client.messages.create(
            **asked, messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        )
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content"):
        await client.messages.create(**asked, messages=[{"role": "user", "content": 3}])
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    with pytest.raises(anthropic.BadRequestError, match="no base64"):
        await client.messages.create(**asked, messages=[{"role": "user", "content": [image]}])
    stranger = anthropic.AsyncAnthropic(base_url=f"{server.url}/s/s", api_key="x", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError, match="this run's key"):
        await stranger.messages.create(**asked, messages=[{"role": "user", "content": "a"}])
    lost = anthropic.AsyncAnthropic(base_url=f"{server.url}/s/t", api_key=server.key, max_retries=0)
    with pytest.raises(anthropic.NotFoundError, match="no session 't'"):
        await lost.messages.create(**asked, messages=[{"role": "user", "content": "a"}])
    assert talk.engine.requests == []
