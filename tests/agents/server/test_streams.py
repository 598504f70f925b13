"""Streams that begin while the engine still works."""

import asyncio
import re

import anthropic
import httpx
import openai
import pytest

from turngym.agents.server import streams
from turngym.errors import EngineError
from turngym.executors.engines.base import UpdateMode

SIGN = streams.SIGN.decode().strip()
USER = [{"role": "user", "content": "a"}]
PATHS = {
    "chat/completions": {"messages": USER},
    "completions": {"prompt": "a"},
    "responses": {"input": "a"},
    "messages": {"messages": USER, "max_tokens": 99},
}


@pytest.fixture
def soon(monkeypatch):
    """No stream waits long for its head, or for a sign of life."""
    monkeypatch.setattr(streams, "HEAD_AFTER_S", 0.01)
    monkeypatch.setattr(streams, "SIGN_EVERY_S", 0.01)


def http_of(server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.session_url("s"), headers={"x-api-key": server.key}, timeout=60)


@pytest.mark.parametrize("path", PATHS)
async def test_a_late_stream_shows_signs_of_life_and_then_what_any_stream_says(served, path, request):
    talk, server = await served("qwen2_5", ["<think>é</think>One two", "<think>é</think>One two"])
    body = {**PATHS[path], "stream": True}
    async with http_of(server) as http:
        quick = (await http.post(path, json=body)).text
        request.getfixturevalue("soon")
        await talk.engine.pause(UpdateMode.DRAIN)
        async with http.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = response.aiter_lines()
            assert [await anext(lines) for _ in range(4)] == [SIGN, "", SIGN, ""]
            await talk.engine.resume()
            late = "\n".join([line async for line in lines])
    late, quick = (events.replace(f"{SIGN}\n\n", "") for events in (late, quick))
    quick = quick.replace("s-0", "s-1").replace("s_0", "s_1")  # the number of the answer
    assert _timeless(late) == _timeless(quick)
    assert "two" in late
    assert talk.session.num_turns == 2


def _timeless(events: str) -> list[str]:
    return re.sub(r'"created(_at)?":\d+', "", events).strip("\n").split("\n")


@pytest.mark.slow
async def test_what_fails_in_a_stream_that_has_begun_is_told_by_its_last_event(served, soon):
    talk, server = await served("qwen2_5", [EngineError("lost")] * 4)
    await talk.engine.pause(UpdateMode.DRAIN)
    ours = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    theirs = anthropic.AsyncAnthropic(
        base_url=server.session_url("s").removesuffix("/v1"), api_key=server.key, max_retries=0
    )
    begun = [
        await ours.chat.completions.create(model="m", messages=USER, stream=True),
        await ours.completions.create(model="m", prompt="a", stream=True),
        await theirs.messages.create(model="m", messages=USER, max_tokens=9, stream=True),
        await ours.responses.create(model="m", input="a", stream=True),
    ]
    await talk.engine.resume()
    for stream in begun[:2]:
        with pytest.raises(openai.APIError, match="lost") as told:
            _ = [chunk async for chunk in stream]
        assert told.value.code == "engine_failed"
    with pytest.raises(anthropic.APIStatusError, match="lost"):
        _ = [event async for event in begun[2]]
    (event,) = [event async for event in begun[3]]
    assert (event.type, event.message, event.code) == ("error", "lost", "engine_failed")
    assert talk.session.num_turns == 0


async def test_what_fails_at_once_is_told_by_the_status(served):
    _, server = await served("qwen2_5", [EngineError("lost")], max_context=200)
    client = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    for said, error in (("a" * 200, openai.BadRequestError), ("a", openai.InternalServerError)):
        with pytest.raises(error):
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": said}], stream=True)


async def test_a_client_that_leaves_a_stream_that_has_begun_frees_its_request(served, soon):
    talk, server = await served(token_latency_s=60.0)
    async with http_of(server) as http, asyncio.timeout(60):
        async with http.stream("POST", "chat/completions", json={"messages": USER, "stream": True}) as response:
            await anext(response.aiter_lines())
            while not talk.engine.num_running:
                await asyncio.sleep(0.001)
        while talk.engine.num_running:
            await asyncio.sleep(0.001)
    assert talk.session.requests.num_running == talk.session.num_turns == 0


async def test_a_session_that_ends_ends_its_streams(served, soon):
    _, server = await served(token_latency_s=60.0)
    body = {"messages": USER, "stream": True}
    async with http_of(server) as http, http.stream("POST", "chat/completions", json=body) as response:
        lines = response.aiter_lines()
        await anext(lines)
        await server.close("s")
        told = [line async for line in lines if line not in ("", SIGN)]
    assert "session_not_found" in told[0]
    assert told[1:] == ["data: [DONE]"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_request_that_the_engine_cancels_by_itself_is_told_as_an_error(served, is_streamed, soon):
    talk, server = await served("qwen2_5")

    async def cancelled(*arguments):
        await asyncio.sleep(0.1)
        raise asyncio.CancelledError

    talk.engine.generate = cancelled
    async with http_of(server) as http:
        answer = await http.post("chat/completions", json={"messages": USER, "stream": is_streamed})
    assert answer.status_code == (200 if is_streamed else 500)
    assert '"code":"engine_failed"' in answer.text
