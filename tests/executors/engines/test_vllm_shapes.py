"""Shapes on a real vLLM behind the server: a schema that is followed, calls that come, and tokens that are marked."""

import json
from pathlib import Path

import numpy as np
import openai
import pytest

from turngym.agents import ChatAgent, Grammar, Sampling, Shape, load_tokenizer
from turngym.agents.base import RequestRefusedError
from turngym.agents.server.server import Server
from turngym.executors.engines.vllm import VllmConfig, VllmEngine

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(280)]

DEVICES = [pytest.param(False, id="cpu"), pytest.param(True, id="gpu", marks=pytest.mark.gpu)]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2, 3]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def asked(text, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_completion_tokens": 200, **fields}


@pytest.mark.parametrize("on_gpu", DEVICES)
async def test_shapes_are_followed_and_marked(tiny_model: Path, on_gpu):
    config = VllmConfig(
        str(tiny_model), "float32", 1024, 16, kv_cache_gib=0.1, num_threads=2, gpu_memory_utilization=0.2
    )
    engine, agent = VllmEngine(config, on_gpu=on_gpu), ChatAgent(load_tokenizer(str(tiny_model)))
    server = Server(agent)
    try:
        await engine.start()
        await server.start()
        await check_engine_alone(engine, agent)
        session = server.open("s", engine, Sampling(200))
        async with openai.AsyncOpenAI(
            base_url=server.session_url("s"), api_key=server.key, max_retries=0, timeout=200
        ) as client:
            await check_server(client, agent)
        record = session.record()
        shaped = [sequence for sequence in record.sequences if sequence.is_shaped.any()]
        assert [len(sequence.samplings) for sequence in record.sequences] == [1, 1, 1]
        assert shaped == list(record.sequences[:2])
        assert all(np.isfinite(sequence.logprobs[sequence.is_action]).all() for sequence in shaped)
        assert (shaped[0].is_shaped == shaped[0].is_action).all()
        answer = agent.codec.decode(shaped[0].token_ids[shaped[0].is_shaped], skip_special_tokens=True)
        assert json.loads(answer).keys() == {"ok", "n"}
    finally:
        await server.stop()
        await engine.close()


async def check_engine_alone(engine, agent):
    prompt = agent.codec.encode("Say:")
    forced = await engine.generate(prompt, Sampling(8, shape=Shape(Grammar.choice(["abc"])), num_top_logprobs=2))
    assert agent.codec.decode(forced.token_ids, skip_special_tokens=True) == "abc"
    # Of the distribution sampled from: nothing else could come, so each token had probability 1.
    assert np.abs(forced.logprobs).max() < 1e-3
    assert forced.top.token_ids[:, 0].tolist() == forced.token_ids.tolist()
    assert (forced.top.logprobs[:, 1] < -1e3).all()
    for shape in (
        Shape(Grammar.regex("(")),
        Shape(Grammar.ebnf("root ::= (")),
        Shape(Grammar.json_schema({"type": "nothing"})),
        Shape(Grammar.tags({"type": "nothing"})),
        Shape(logit_bias=((99_999, 1.0),)),
    ):
        with pytest.raises(RequestRefusedError, match="vLLM refused"):
            await engine.generate(prompt, Sampling(4, shape=shape))
    byte = int(agent.codec.encode("a")[0])
    for _ in range(4):
        shape = Shape(bad_words=("a",), logit_bias=((byte, 20.0),), repetition_penalty=1.1, min_tokens=6)
        free = await engine.generate(prompt, Sampling(6, shape=shape))
        assert len(free.token_ids) == 6
        assert byte not in free.token_ids


async def check_server(client, agent):
    # Of a random model's tokens between those of JSON most are spaces, of which there may be any number.
    spaces = {str(int(agent.codec.encode(space)[0])): -100 for space in " \t\r\n"}
    answer = await client.chat.completions.create(**asked("Is it?"), response_format=FORMAT, logit_bias=spaces)
    said = json.loads(answer.choices[0].message.content)
    assert isinstance(said["ok"], bool)
    assert said["n"] in (1, 2, 3)
    answer = await client.chat.completions.create(
        **asked("Look."), tools=TOOLS, tool_choice="required", parallel_tool_calls=False, logit_bias=spaces
    )
    for call in answer.choices[0].message.tool_calls:
        assert call.function.name == "look"
        assert json.loads(call.function.arguments).keys() == {"ok", "n"}
    with pytest.raises(openai.BadRequestError, match="vLLM refused"):
        await client.chat.completions.create(**asked("a"), extra_body={"guided_json": {"type": "nothing"}})
    answer = await client.chat.completions.create(
        **asked("Anything.", max_completion_tokens=5), logprobs=True, top_logprobs=3, seed=1
    )
    assert all(len(each.top_logprobs) == 3 for each in answer.choices[0].logprobs.content)
