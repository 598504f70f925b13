"""The server as the process that runs it sees it."""

import asyncio

import httpx
import pytest

from turngym.agents import Sampling
from turngym.agents.server.server import Server
from turngym.errors import ConfigError

SAMPLING = Sampling(max_tokens=64, temperature=0.7, top_p=0.9)


def user(text):
    return {"role": "user", "content": text}


async def test_sessions_are_opened_and_closed_by_name(served):
    talk, server = await served()
    with pytest.raises(ConfigError, match="a name of its own"):
        server.open("s", talk.engine, SAMPLING)
    with pytest.raises(ConfigError, match="without a slash"):
        server.open("a/b", talk.engine, SAMPLING)
    server.open("train?é", talk.engine, SAMPLING)
    async with httpx.AsyncClient(headers={"x-api-key": server.key}) as http:
        url = f"{server.session_url('train?é')}/chat/completions"
        assert (await http.post(url, json={"messages": [user("a")]})).status_code == 200
    record = await server.close("train?é")
    assert record.sequences[0].samplings == {0: SAMPLING}
    assert (await server.close("s")).sequences == ()


async def test_the_sessions_own_sampling_may_hold_whatever_is_asked(served):
    talk, server = await served()
    server.open("t", talk.engine, SAMPLING, keeps_sampling=True)
    async with httpx.AsyncClient(headers={"x-api-key": server.key}) as http:
        body = {"messages": [user("a")], "temperature": 0, "top_p": 0.1, "top_k": 1, "max_tokens": 8, "stop": "x"}
        for name in ("s", "t"):
            await http.post(f"{server.session_url(name)}/chat/completions", json=body)
    free, kept = [request.sampling for request in talk.engine.requests]
    assert (free.temperature, free.top_p, free.top_k) == (0.0, 0.1, 1)
    assert (kept.temperature, kept.top_p, kept.top_k, kept.max_tokens, kept.stop) == (0.7, 0.9, -1, 8, ("x",))


async def test_a_port_that_is_taken_is_named(served):
    talk, server = await served()
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"port {port}"):
        await Server(talk.agent, port=port).start()


@pytest.mark.soak
async def test_a_thousand_sessions_talk_at_once(served):
    talk, server = await served(token_latency_s=0.01)
    names = [f"e{number}" for number in range(1000)]
    sessions = [server.open(name, talk.engine, SAMPLING) for name in names]

    async def play(some) -> None:
        async with httpx.AsyncClient(headers={"x-api-key": server.key}, timeout=200, verify=False) as http:
            await asyncio.gather(*[converse(http, name) for name in some])

    async def converse(http, name) -> None:
        history = [user(name)]
        for turn in range(3):
            url = f"{server.session_url(name)}/chat/completions"
            answer = (await http.post(url, json={"messages": history})).json()
            history += [answer["choices"][0]["message"], user(f"go on {turn}")]

    await asyncio.gather(*[play(names[start : start + 20]) for start in range(0, 1000, 20)])
    assert [session.num_turns for session in sessions] == [3] * 1000
    for name, session in zip(names, sessions, strict=True):
        (sequence,) = session.record().sequences
        assert f"user\n{name}<" in talk.tokenizer.decode(sequence.token_ids)
    assert sum(session.record().sequences[0].num_actions for session in sessions) == sum(map(len, talk.replies))
