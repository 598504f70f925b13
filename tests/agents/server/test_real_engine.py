"""The server before a real vLLM with a real model: what it records is what was sampled, and nothing runs for nobody."""

import asyncio

import numpy as np
import openai
import pytest
import pytest_asyncio

from turngym.agents import Sampling, load_tokenizer
from turngym.agents.chat import agent_for
from turngym.agents.server import streams
from turngym.agents.server.server import Server
from turngym.executors.engines.scripted import Request
from turngym.executors.engines.vllm import VllmConfig, VllmEngine

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
SAMPLING = Sampling(max_tokens=8)
DEVICES = [pytest.param(False, id="cpu"), pytest.param(True, id="gpu", marks=pytest.mark.gpu)]
CALLED = [
    {"role": "user", "content": "What time is it in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"place": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "It is noon in Oslo."},
]


class Spy:
    """Passes requests on, and keeps what was asked and sampled, in the order of the answers."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.max_context = engine.max_context
        self.requests, self.sampled = [], []

    async def generate(self, prompt_ids, sampling, images=None, request=""):
        completion = await self.engine.generate(prompt_ids, sampling, images, request)
        self.requests.append(Request(prompt_ids.copy(), sampling, request, len(self.requests)))
        self.sampled.append(completion)
        return completion


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=DEVICES)
async def engine(smollm2, request):
    config = VllmConfig(
        str(smollm2),
        "float32",
        max_context=1024,
        max_num_seqs=8,
        kv_cache_gib=0.25,
        num_threads=2,
        gpu_memory_utilization=0.2,
    )
    engine = VllmEngine(config, on_gpu=request.param)
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(engine, smollm2):
    server = Server(agent_for(load_tokenizer(str(smollm2))))
    await server.start()
    yield server
    async with asyncio.timeout(60):
        await server.stop()


def client_of(server, name) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.session_url(name), api_key=server.key, max_retries=0)


async def asked(client, history, tools, streamed) -> tuple[dict, list[float]]:
    """Ask once; return the message that a client keeps, and the logprobs that it was told."""
    options = {"model": "m", "messages": history, "tools": tools, "logprobs": True}
    if not streamed:
        (choice,) = (await client.chat.completions.create(**options)).choices
        return choice.message.model_dump(exclude_none=True), [token.logprob for token in choice.logprobs.content]
    message, logprobs = {"role": "assistant", "content": ""}, []
    async for chunk in await client.chat.completions.create(**options, stream=True):
        (choice,) = chunk.choices
        message["content"] += choice.delta.content or ""
        logprobs += [token.logprob for token in (choice.logprobs.content if choice.logprobs else ())]
        for part in choice.delta.tool_calls or ():
            calls = message.setdefault("tool_calls", [])
            if part.index == len(calls):
                calls.append({"id": part.id, "type": "function", "function": {"name": "", "arguments": ""}})
            calls[-1]["function"]["name"] += part.function.name or ""
            calls[-1]["function"]["arguments"] += part.function.arguments or ""
    return message, logprobs


async def test_what_is_recorded_is_what_was_sampled_and_scores_alike(engine, server, tools, check_record):
    spies = {f"talk{number}": Spy(engine) for number in range(3)}

    async def talk(name, spy, number) -> None:
        server.open(name, spy, SAMPLING)
        client = client_of(server, name)
        history = [{"role": "system", "content": f"You are number {number}."}, *CALLED]
        for turn in range(3):
            message, logprobs = await asked(client, history, tools, streamed=(number + turn) % 2 == 0)
            np.testing.assert_array_equal(logprobs, spy.sampled[turn].logprobs.astype(np.float64))
            text = server.agent.codec.decode(spy.sampled[turn].token_ids, skip_special_tokens=True)
            if not message.get("tool_calls"):
                assert message["content"] == text
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": "noon"}
                for call in message.get("tool_calls") or ()
            ]
            history += [message, *results, {"role": "user", "content": f"And tomorrow, at {turn}?"}]

    await asyncio.gather(*[talk(name, spy, number) for number, (name, spy) in enumerate(spies.items())])
    for name, spy in spies.items():
        record = await server.close(name)
        check_record(record, spy.requests, [each.token_ids for each in spy.sampled])
        assert len(record.sequences) == 1
        for sequence in record.sequences:
            scores = await engine.score(sequence.token_ids)
            actions = sequence.is_action
            tolerance = 2e-2 if engine._on_gpu else 1e-4
            np.testing.assert_allclose(sequence.logprobs[actions], scores[actions], atol=tolerance)


@pytest.mark.parametrize("streamed", [False, True])
async def test_vllm_aborts_what_nobody_waits_for(engine, server, monkeypatch, streamed):
    monkeypatch.setattr(streams, "HEAD_AFTER_S", 0.01)
    vllm = engine._child._engine
    aborted, abort = [], vllm.abort

    async def noted(request_ids, *arguments, **named):
        aborted.extend(request_ids)
        await abort(request_ids, *arguments, **named)

    monkeypatch.setattr(vllm, "abort", noted)
    name = f"gone{streamed}"
    session = server.open(name, engine, Sampling(max_tokens=900, temperature=2.0))  # at this heat nothing ends
    options = {"model": "m", "messages": CALLED[:1], "stream": streamed}
    async with asyncio.timeout(300):
        task = asyncio.create_task(client_of(server, name).chat.completions.create(**options))
        while not any(engine._child.num_sampled().values()):  # vLLM is at it
            await asyncio.sleep(0.01)
        if streamed:
            await (await task).close()
        else:
            task.cancel()
        while session.requests.num_running or engine._running:
            await asyncio.sleep(0.01)
        await asyncio.wait([task])
        assert len(aborted) == 1
        assert vllm.output_processor.request_states == {}
        await engine.pause()  # which waits until vLLM's scheduler has nothing left
        await engine.resume()
    assert (await server.close(name)).sequences == ()
