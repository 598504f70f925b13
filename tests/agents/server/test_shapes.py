"""What shapes an answer, as the real clients ask for it; and which tokens are marked for it."""

import json
from typing import Literal

import anthropic
import httpx
import numpy as np
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import BaseModel

from turngym.agents import Grammar, Sampling, Shape
from turngym.agents.base import RequestRefusedError, TopLogprobs
from turngym.executors.engines.scripted import Reply

CALL = '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Mood(BaseModel):
    mood: Literal["good", "bad"]


def openai_of(server, name="s"):
    return openai.AsyncOpenAI(base_url=server.session_url(name), api_key=server.key, max_retries=0)


def anthropic_of(server):
    base_url = server.session_url("s").removesuffix("/v1")
    return anthropic.AsyncAnthropic(base_url=base_url, api_key=server.key, max_retries=0)


def asked(text="a", **fields):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def shapes(talk):
    return [request.sampling.shape for request in talk.engine.requests]


async def test_a_format_is_a_grammar_and_its_turn_is_marked(served):
    talk, server = await served("qwen2_5", ['{"mood": "good"}', "Thanks."])
    client = openai_of(server)
    first = await client.chat.completions.parse(**asked("How are you?"), response_format=Mood)
    assert first.choices[0].message.parsed == Mood(mood="good")
    history = [*asked("How are you?")["messages"], {"role": "assistant", "content": first.choices[0].message.content}]
    await client.chat.completions.create(model="m", messages=[*history, {"role": "user", "content": "Fine."}])
    first_shape, second_shape = shapes(talk)
    assert first_shape == Shape(Grammar.json_schema(first_shape.grammar.value))
    assert first_shape.grammar.value["properties"]["mood"]["enum"] == ["good", "bad"]
    assert second_shape is None
    (sequence,) = talk.session.record().sequences
    shaped = talk.tokenizer.decode(sequence.token_ids[sequence.is_shaped])
    assert shaped == '{"mood": "good"}<|im_end|>'
    assert (sequence.is_action & ~sequence.is_shaped).sum() == len(talk.replies[1])


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"response_format": {"type": "json_object"}}, Shape(Grammar.json_object())),
        ({"response_format": {"type": "text"}, "logit_bias": {}, "presence_penalty": 0}, None),
        ({"presence_penalty": 1, "frequency_penalty": -0.5}, Shape(presence_penalty=1.0, frequency_penalty=-0.5)),
        ({"logit_bias": {"5": -100, "7": 0}}, Shape(logit_bias=((5, -100.0),))),
        (
            {"extra_body": {"repetition_penalty": 1.1, "bad_words": ["no"], "min_tokens": 4}},
            Shape(repetition_penalty=1.1, bad_words=("no",), min_tokens=4),
        ),
        ({"extra_body": {"guided_json": SCHEMA}}, Shape(Grammar.json_schema(SCHEMA))),
        ({"extra_body": {"guided_json": json.dumps(SCHEMA)}}, Shape(Grammar("json_schema", json.dumps(SCHEMA)))),
        ({"extra_body": {"guided_regex": "a+"}}, Shape(Grammar.regex("a+"))),
        ({"extra_body": {"guided_choice": ["a", "b"]}}, Shape(Grammar.choice(["a", "b"]))),
        ({"extra_body": {"structured_outputs": {"grammar": "root ::= 'a'"}}}, Shape(Grammar.ebnf("root ::= 'a'"))),
        ({"extra_body": {"structured_outputs": {"json": SCHEMA}}}, Shape(Grammar.json_schema(SCHEMA))),
    ],
)
async def test_fields_become_a_shape(served, fields, shape):
    talk, server = await served()
    await openai_of(server).chat.completions.create(**asked(), **fields)
    assert shapes(talk) == [shape]


async def test_text_completions_take_shapes_too(served):
    talk, server = await served("qwen2_5", [" 4"])
    extra = {"structured_outputs": {"choice": [" 4", " 5"]}, "min_tokens": 1}
    await openai_of(server).completions.create(model="m", prompt="2+2=", frequency_penalty=0.5, extra_body=extra)
    assert shapes(talk) == [Shape(Grammar.choice([" 4", " 5"]), frequency_penalty=0.5, min_tokens=1)]


async def test_a_session_that_keeps_its_sampling_leaves_only_what_tunes_aside(served):
    """A format, a call, a ban are what a client relies on; a penalty is the run's, as its temperature is."""
    talk, server = await served("qwen2_5", ['{"n": 1}'])
    base = Sampling(64, temperature=0.7, shape=Shape(presence_penalty=0.25))
    server.open("k", talk.engine, base, keeps_sampling=True)
    fields = {"temperature": 0.1, "presence_penalty": 2, "frequency_penalty": 2, "logit_bias": {"5": -100}}
    extra = {"repetition_penalty": 1.5, "bad_words": ["no"], "top_k": 3}
    await openai_of(server, "k").chat.completions.create(
        **asked(), **fields, response_format={"type": "json_object"}, extra_body=extra
    )
    (sampling,) = [request.sampling for request in talk.engine.requests]
    assert (sampling.temperature, sampling.top_k) == (0.7, -1)
    assert sampling.shape == Shape(
        Grammar.json_object(), presence_penalty=0.25, logit_bias=((5, -100.0),), bad_words=("no",)
    )


async def test_what_an_engine_refuses_is_the_clients_to_mend(served):
    refusal = RequestRefusedError("no such grammar: missing )")
    talk, server = await served("qwen2_5", [refusal, refusal, "Hi"])
    with pytest.raises(openai.BadRequestError, match="missing \\)"):
        await openai_of(server).chat.completions.create(**asked(), extra_body={"guided_regex": "("})
    with pytest.raises(anthropic.BadRequestError, match="missing \\)"):
        await anthropic_of(server).messages.create(**asked(), max_tokens=9)
    assert talk.session.lost is None
    assert (await openai_of(server).chat.completions.create(**asked())).choices[0].message.content == "Hi"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
async def test_a_call_that_must_come_is_a_grammar(served, tools, choice):
    talk, server = await served("qwen2_5", [CALL])
    answer = await openai_of(server).chat.completions.create(**asked(), tools=tools, tool_choice=choice)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["time"]
    (shape,) = shapes(talk)
    form = shape.grammar.value["format"]
    names = [tag["begin"] for tag in form["tags"]]
    wanted = ["weather", "time"] if choice == "required" else ["time"]
    assert names == [f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in wanted]
    assert form["stop_after_first"] is (choice != "required")
    assert talk.session.record().sequences[0].is_shaped.any()


async def test_calls_that_need_not_come_are_no_grammar(served, tools):
    talk, server = await served("qwen2_5", ["Hi", "Hi", '{"n": 1}'])
    client = openai_of(server)
    await client.chat.completions.create(**asked(), tools=tools)
    await client.chat.completions.create(**asked(), tools=tools, tool_choice="none", parallel_tool_calls=False)
    json_object = {"type": "json_object"}
    await client.chat.completions.create(**asked(), tools=tools, tool_choice="none", response_format=json_object)
    assert shapes(talk) == [None, None, Shape(Grammar.json_object())]


async def test_the_likeliest_tokens_are_told_where_asked(served):
    logprobs = np.array([[np.log(0.75), np.log(0.25)], [0.0, -np.inf]], np.float32)
    top = TopLogprobs(np.array([[72, 105], [104, 105]], np.int32), logprobs)
    reply = Reply([105, 104], np.log([0.25, 1.0]), top=top)
    talk, server = await served("qwen2_5", [reply, reply, reply])
    client, text = openai_of(server), talk.tokenizer.decode
    answer = await client.chat.completions.create(**asked(), logprobs=True, top_logprobs=2)
    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    first, second = answer.choices[0].logprobs.content
    assert [(each.token, each.logprob) for each in first.top_logprobs] == [
        (text([72]), pytest.approx(np.log(0.75))),
        (text([105]), pytest.approx(np.log(0.25))),
    ]
    assert second.top_logprobs[1].logprob == -9999.0  # what could not come
    plain = await client.completions.create(model="m", prompt="a", logprobs=2)
    Completion.model_validate(plain.model_dump(), strict=True)
    assert plain.choices[0].logprobs.top_logprobs[0] == pytest.approx(
        {text([72]): np.log(0.75), text([105]): np.log(0.25)}
    )
    response = await client.responses.create(model="m", input="a", top_logprobs=2)
    Response.model_validate(response.model_dump(), strict=True)
    (said,) = response.output[0].content
    assert [len(each.top_logprobs) for each in said.logprobs] == [2, 2]
    assert [request.sampling.num_top_logprobs for request in talk.engine.requests] == [2, 2, 2]
    assert not talk.session.record().sequences[0].is_shaped.any()  # it changes nothing of what is sampled


async def test_formats_and_calls_of_responses(served):
    talk, server = await served("qwen2_5", ['{"mood": "bad"}', CALL])
    client = openai_of(server)
    first = await client.responses.parse(model="m", input="How are you?", text_format=Mood)
    assert first.output_parsed == Mood(mood="bad")
    assert first.text.format.type == "json_schema"
    tool = {"type": "function", "name": "time", "parameters": SCHEMA, "strict": False}
    choice = {"type": "function", "name": "time"}
    second = await client.responses.create(model="m", input="a", tools=[tool], tool_choice=choice)
    Response.model_validate(second.model_dump(), strict=True)
    assert second.output[0].name == "time"
    assert [shape.grammar.kind.value for shape in shapes(talk)] == ["json_schema", "tags"]
    with pytest.raises(openai.BadRequestError, match="names none of the tools"):
        await client.responses.create(model="m", input="a", tools=[tool], tool_choice={**choice, "name": "other"})


async def test_formats_and_calls_of_anthropic(served):
    talk, server = await served("qwen2_5", ['{"n": 1}', CALL, CALL])
    client = anthropic_of(server)
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = await client.messages.create(**asked(), max_tokens=64, output_config=config)
    assert answer.content[0].text == '{"n": 1}'
    tools = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("time", "news")]
    one = {"type": "any", "disable_parallel_tool_use": True}
    for choice in (one, {"type": "tool", "name": "time"}):
        answer = await client.messages.create(**asked(), max_tokens=200, tools=tools, tool_choice=choice)
        assert answer.content[0].name == "time"
    first, *forced = [shape.grammar for shape in shapes(talk)]
    assert first == Grammar.json_schema(SCHEMA)
    assert [len(each.value["format"]["tags"]) for each in forced] == [2, 1]
    assert all(each.value["format"]["stop_after_first"] for each in forced)


async def test_a_kept_response_is_had_again_and_deleted(served):
    talk, server = await served("qwen2_5", ["One.", "Two."])
    client = openai_of(server)
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    first = await client.responses.create(model="m", input=history)
    assert (await client.responses.retrieve(first.id)).model_dump() == first.model_dump()
    items = [item async for item in client.responses.input_items.list(first.id, order="asc", limit=2)]
    assert [(item.role, item.content[0].type, item.content[0].text) for item in items] == [
        ("user", "input_text", "a"),
        ("assistant", "output_text", "b"),
        ("user", "input_text", "c"),
    ]
    last = await client.responses.input_items.list(first.id, limit=1)
    assert last.data[0].id == items[2].id
    assert last.has_more
    await client.responses.delete(first.id)
    for gone in (client.responses.retrieve(first.id), client.responses.delete(first.id)):
        with pytest.raises(openai.NotFoundError, match="no response"):
            await gone
    with pytest.raises(openai.NotFoundError, match="no response"):
        await client.responses.create(model="m", input="d", previous_response_id=first.id)
    unkept = await client.responses.create(model="m", input="e", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(unkept.id)
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {server.key}"}) as http:
        url = f"{server.session_url('s')}/responses/{first.id}/input_items"
        assert (await http.get(url, params={"limit": "9" * 5000})).status_code in (400, 404)
    assert talk.session.num_turns == 2  # what was sampled stays


async def test_channels_are_read_as_environments_have_them_read(served):
    """GPT-OSS writes in channels also where there are no tools."""
    text = "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>final<|message|>5"
    talk, server = await served("gptoss", [])
    whole = talk.tokenizer.encode(f"{text}<|return|>", add_special_tokens=False)
    again = talk.tokenizer.encode("<|channel|>final<|message|>6<|return|>", add_special_tokens=False)
    talk.texts[:] = [Reply(whole, np.zeros(len(whole))), Reply(again, np.zeros(len(again)))]
    client = openai_of(server)
    first = await client.chat.completions.create(**asked("2+3?"))
    message = first.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("5", "I add.")
    read = talk.agent.reader().read(text)
    assert (read.content, read.reasoning) == (message.content, message.model_extra["reasoning_content"])
    history = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]
    second = await client.chat.completions.create(model="m", messages=[*history, {"role": "user", "content": "And 4?"}])
    assert second.choices[0].message.content == "6"
    assert talk.session.record().turns == ((0, 1),)  # one conversation, whatever channels it came in
    await client.chat.completions.create(**asked(), response_format={"type": "json_object"})
    grammar = talk.engine.requests[-1].sampling.shape.grammar
    assert "<|channel|>final<|message|>" in grammar.text
