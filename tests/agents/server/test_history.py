"""What clients make of answers before they send them back: which tokens are gone on from, and how that is counted."""

import httpx
import pytest

from turngym.agents import Sampling
from turngym.agents.server.asks import ChatAsk, TextAsk
from turngym.agents.server.canonical import chat_messages
from turngym.errors import EngineError

SAMPLING = Sampling(max_tokens=256)
QUESTION = {"role": "user", "content": "What time is it?"}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "12:00"}
CALL = '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo", "b": 1.0}}\n</tool_call>'
ANSWER = f"<think>\nWhich place?\n</think>\n\nLet me  look.\n{CALL}"


def said(content="Let me  look.", arguments='{"place": "Oslo", "b": 1.0}', **fields):
    call = {"id": "x", "type": "function", "function": {"name": "time", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call], **fields}


def counted(session) -> dict[str, int]:
    return {name: count for name, count in session.record().history.items() if count}


@pytest.mark.parametrize(
    ("message", "counts"),
    [
        (said(reasoning_content="Which place?"), {}),
        (said(reasoning="Which place?"), {}),
        ({"role": "assistant", "content": ANSWER}, {}),  # all in one, as it was written
        (said(), {"thoughts_dropped": 1}),
        (said(reasoning_content="Which town?"), {"thoughts_edited": 1}),
        (said(" Let me look. "), {"thoughts_dropped": 1, "rewritten": 1}),
        (said(None, reasoning_content="Which place?"), {"rewritten": 1}),
        (said(arguments='{ "b":1, "place":"Oslo" }', reasoning_content="Which place?"), {"rewritten": 1}),
    ],
)
async def test_a_history_that_was_changed_gets_the_tokens_that_were_sampled(talk_of, tools, message, counts):
    """R26: intact, renamed, removed, edited, and each counted."""
    talk = talk_of("qwen2_5", [ANSWER, "Noon."])
    first = ChatAsk(chat_messages([QUESTION]), SAMPLING, tools=tools)
    await talk.session.chat(first)
    await talk.session.chat(ChatAsk(chat_messages([QUESTION, message, RESULT]), SAMPLING, tools=tools))
    record = talk.session.record()
    (sequence,) = record.sequences
    assert talk.tokenizer.decode(sequence.token_ids[sequence.is_action]) == f"{ANSWER}<|im_end|>Noon.<|im_end|>"
    assert talk.prompts()[1].startswith(talk.prompts()[0] + ANSWER)  # the second answer has seen the thought
    assert counted(talk.session) == {"continued": 1, **counts}
    assert set(record.history) >= {"branches_edited", "branches_new"}  # those that are 0 as well


async def test_why_requests_branch(talk_of, tools):
    talk = talk_of("qwen2_5")
    session = talk.session

    async def ask(*messages, **options):
        (*_, answer) = await session.chat(ChatAsk(chat_messages(messages), SAMPLING, **options))
        return {"role": "assistant", "content": answer.content}

    user = {"role": "user", "content": "And?"}
    one = await ask(user)
    two = await ask(user, one, user)
    assert counted(session) == {"continued": 1}
    await ask(user, one, user, two, {"role": "assistant", "content": "I add."}, user)  # behind all that is known
    assert counted(session) == {"continued": 2}
    await ask(user, one, user)  # shortened
    assert counted(session) == {"continued": 3, "branches_repeated": 1}
    await ask(user, one, user, {"role": "assistant", "content": "edited"}, user)
    await ask(user, {"role": "assistant", "content": "A summary."}, user)
    await ask({"role": "system", "content": "You help."}, user)
    await ask(user, one, user, two, user, tools=tools)
    assert counted(session) == {
        "continued": 4,
        "branches_repeated": 1,
        "branches_edited": 2,
        "branches_new": 1,
        "branches_tools": 1,
    }
    await ask(user, one, user, two, user, tools=tools, n=3)
    assert session.record().history["branches_choices"] == 2
    before = dict(session.record().history)
    talk.texts = [EngineError("lost")]
    with pytest.raises(EngineError):
        await ask(user, one, user)
    assert session.record().history == before
    assert len(session.record().sequences) == 1 + 1 + 2 + 1 + 1 + 3


async def test_texts_count_as_well(talk_of):
    talk = talk_of("qwen2_5")
    for prompt in ("2 + 2 =", "2 + 2 =answer 0 and", "2 + 2 =answer 0 or", "3 + 3 ="):
        await talk.session.complete([TextAsk(prompt, SAMPLING)])
    assert counted(talk.session) == {"continued": 2, "branches_repeated": 1, "branches_new": 1}


@pytest.mark.parametrize(
    ("path", "bodies"),
    [
        (
            "/messages",
            [
                [
                    {"type": "thinking", "thinking": "Which place?", "signature": ""},
                    {"type": "text", "text": "Let me  look."},
                    {"type": "tool_use", "id": "x", "name": "time", "input": {"place": "Oslo", "b": 1.0}},
                ]
            ],
        ),
        (
            "/responses",
            [
                {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Which place?"}]},
                {"type": "message", "role": "assistant", "content": "Let me  look."},
                {"type": "function_call", "call_id": "x", "name": "time", "arguments": '{"place": "Oslo", "b": 1.0}'},
            ],
        ),
    ],
)
@pytest.mark.parametrize("is_thought_kept", [True, False])
async def test_thoughts_come_back_in_each_api(served, tools, path, bodies, is_thought_kept):
    talk, server = await served("qwen2_5", [ANSWER, "Noon."])
    functions = [tool["function"] for tool in tools]
    if path == "/messages":
        (blocks,) = bodies
        result = {"type": "tool_result", "tool_use_id": "x", "content": "12:00"}
        history = [
            {"role": "assistant", "content": blocks if is_thought_kept else blocks[1:]},
            {"role": "user", "content": [result]},
        ]
        given = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions
        ]
        asks = [
            {"max_tokens": 200, "tools": given, "messages": messages} for messages in ([QUESTION], [QUESTION, *history])
        ]
    else:
        output = {"type": "function_call_output", "call_id": "x", "output": "12:00"}
        history = [*(bodies if is_thought_kept else bodies[1:]), output]
        given = [{"type": "function", **function} for function in functions]
        asks = [{"tools": given, "input": items} for items in ([QUESTION], [QUESTION, *history])]
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers={"x-api-key": server.key}) as http:
        for body in asks:
            answer = await http.post(path, json=body)
            assert answer.status_code == 200, answer.text
    assert counted(talk.session) == {"continued": 1, **({} if is_thought_kept else {"thoughts_dropped": 1})}


async def test_a_history_that_the_server_keeps_has_its_thoughts(served):
    talk, server = await served("qwen2_5", ["<think>\nHm.\n</think>\n\nNoon.", "Yes."])
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers={"x-api-key": server.key}) as http:
        first = (await http.post("/responses", json={"input": "a"})).json()
        await http.post("/responses", json={"input": "b", "previous_response_id": first["id"]})
    assert counted(talk.session) == {"continued": 1}
