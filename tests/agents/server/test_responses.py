"""The Responses API as the real `openai` client sees it, and requests of agents that speak nothing else."""

import httpx
import openai
import pytest
from openai.types.responses import Response

CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>'
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
QUESTION = "Weather in Oslo?"


def client_of(server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)


@pytest.mark.slow
async def test_a_response_goes_on_from_an_id(served):
    """R24."""
    talk, server = await served("qwen2_5", [f"<think>\nHm.\n</think>\n\nI look.\n{CALL}", "Rain."])
    client = client_of(server)
    asked = {"model": "m", "instructions": "Be brief.", "tools": [TOOL]}
    first = await client.responses.create(**asked, input=QUESTION)
    Response.model_validate(first.model_dump(), strict=True)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert (first.output_text, first.output[2].arguments) == ("I look.", '{"place": "Oslo"}')
    result = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "rain"}
    second = await client.responses.create(**asked, input=[result], previous_response_id=first.id)
    assert (second.output_text, second.status) == ("Rain.", "completed")
    prompts = [request.prompt_ids.tolist() for request in talk.engine.requests]
    assert prompts[1][: len(prompts[0]) + len(talk.replies[0])] == prompts[0] + talk.replies[0]
    (sequence,) = talk.session.record().sequences
    assert sequence.num_actions == len(talk.replies[0]) + len(talk.replies[1])
    with pytest.raises(openai.NotFoundError, match="no response 'resp_other'"):
        await client.responses.create(**asked, input=[result], previous_response_id="resp_other")
    with pytest.raises(openai.BadRequestError, match=f"no output for the call '{result['call_id']}'"):
        await client.responses.create(**asked, input="And now?", previous_response_id=first.id)


async def test_items_sent_back_are_the_turns_that_they_were(served):
    talk, server = await served("qwen2_5", [f"<think>a</think>I look.\n{CALL}\n{CALL}", "Rain."])
    client = client_of(server)
    first = await client.responses.create(model="m", input=QUESTION, tools=[TOOL])
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": [{"type": "input_text", "text": "rain"}]}
        for item in first.output[2:]
    ]
    assert len(results) == 2
    history = [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    history += [item.model_dump(exclude_none=True) for item in first.output]
    await client.responses.create(model="m", input=[*history, *results], tools=[TOOL])
    (sequence,) = talk.session.record().sequences
    assert sequence.num_actions == len(talk.replies[0]) + len(talk.replies[1])


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Hello, this is more than one piece of text.", f"<think>a</think>b{CALL}", CALL, ""])
async def test_a_stream_says_what_one_answer_says(served, text):
    _, server = await served("qwen2_5", [text] * 2)
    client = client_of(server)
    asked = {"model": "m", "input": QUESTION, "tools": [TOOL]}
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.usage == whole.usage
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text


async def test_what_responses_have_in_common_is_kept_once(served):
    _, server = await served("qwen2_5")
    tool = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}, "strict": True}
    asked = {"model": "m", "instructions": "Be brief.", "tools": [tool]}
    items = [{"role": "user", "content": "Hi"}]
    async with client_of(server) as client:
        for _ in range(3):
            response = await client.responses.create(input=items, **asked)
            items += [{"role": "assistant", "content": response.output_text}, {"role": "user", "content": "More"}]
        listed = await client.responses.input_items.list(response.id, order="asc", limit=100)
    assert [item.content[0].text for item in listed.data] == ["Hi", "answer 0", "More", "answer 1", "More"]
    first, second, third = server._sessions["s"].responses.values()
    assert third.given.before.before is second.given
    assert second.given.before.before is first.given
    assert third.history.before.before.before is second.history.before  # all but its own answer
    assert third.whole["tools"] is first.whole["tools"]
    assert [message["content"] for message in third.history.values()][-2:] == ["More", "answer 2"]


async def test_an_answer_that_was_cut_is_incomplete(served):
    _, server = await served("qwen2_5", ["a" * 50])
    answer = await client_of(server).responses.create(model="m", input="a", max_output_tokens=5)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_tools_of_all_kinds_are_returned_as_they_were_given(served, caplog):
    """R22: what a server would have to run itself is left out with a note."""
    caplog.set_level("INFO", "turngym.agents.server")
    patch = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
    search = '<tool_call>\n{"name": "mcp__x__find", "arguments": {"q": 1}}\n</tool_call>'
    talk, server = await served("qwen2_5", [patch + search, "Done."])
    tools = [
        TOOL,
        {"type": "namespace", "name": "mcp__x__", "tools": [{"type": "function", "name": "find", "parameters": {}}]},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search"},
    ]
    headers = {"authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers=headers) as http:
        history = [{"role": "user", "content": "a"}, {"type": "message", "role": "developer", "content": "b"}]
        answer = (await http.post("/responses", json={"input": history, "tools": tools})).json()
        first, second = answer["output"]
        assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
        assert (second["type"], second["namespace"], second["name"]) == ("function_call", "mcp__x__", "find")
        history += [
            *answer["output"],
            {"type": "custom_tool_call_output", "call_id": first["call_id"], "output": "ok"},
            {
                "type": "function_call_output",
                "call_id": second["call_id"],
                "output": [{"type": "input_text", "text": "k"}],
            },
        ]
        last = await http.post("/responses", json={"input": history, "tools": tools})
        assert last.json()["output"][0]["content"][0]["text"] == "Done."
        none = await http.post("/responses", json={"input": "a", "tools": [], "tool_choice": "auto"})
        assert none.status_code == 200
    assert next(s.num_actions for s in talk.session.record().sequences) == sum(map(len, talk.replies[:2]))
    assert "web_search" not in talk.prompts()[0]
    assert "a tool of type 'web_search' is left out" in caplog.text
