"""What the Codex CLI sends to `/v1/responses`, field for field as its public source builds it, and what it reads.

These are its requests, its histories and its reader of events; where the program is installed, it is run itself.
"""

import asyncio
import json
import os
import shutil

import httpx
import numpy as np
import pytest

from turngym.executors.engines.scripted import Reply

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The command to execute"},
            "workdir": {"type": "string", "description": "The working directory to execute the command in"},
            "timeout_ms": {"type": "number", "description": "The timeout for the command in milliseconds"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Use the `apply_patch` tool to edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" LF'},
}
FIND = {"type": "function", "name": "find", "description": "Find.", "strict": False, "parameters": {"type": "object"}}
TOOLS = [
    SHELL,
    PATCH,
    {"type": "namespace", "name": "mcp__docs__", "description": "Documents.", "tools": [FIND]},
    {"type": "local_shell"},
    {"type": "web_search", "external_web_access": False},
]
BEGIN = "*** Begin Patch\n*** Add File: a\n+1\n*** End Patch"
SUMMARY = "Create a handoff summary for another model that will resume the task."
CALLS = [
    ("shell", {"command": ["ls", "-la"], "workdir": "/repo"}),
    ("apply_patch", {"input": BEGIN}),
    ("mcp__docs__find", {"q": "a"}),
]


def user(text, role="user"):
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def request(items, **fields):
    return {
        "model": "gpt-5.1-codex",
        "instructions": "You are a coding agent.",
        "input": items,
        "tools": TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199c2d7-6b0e-7a61-9d7b-0d7d0f3c2f10",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "1"},
        **fields,
    }


def kept(item, *, is_whole):
    """An item as Codex writes it into its history: the fields that its types have, older versions without ids."""
    if is_whole:
        return {**item, "encrypted_content": None} if item["type"] == "reasoning" else item
    if item["type"] == "message":
        parts = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
        return {"type": "message", "role": item["role"], "content": parts}
    if item["type"] == "reasoning":
        parts = [{"type": part["type"], "text": part["text"]} for part in item["content"]]
        return {"type": "reasoning", "summary": item["summary"], "content": parts, "encrypted_content": None}
    names = ("type", "name", "namespace", "arguments", "input", "call_id")
    assert item["call_id"]
    return {name: item[name] for name in names if name in item}


async def turn(http, body, *, is_whole):
    """Send a request as Codex does, read the stream as it does, and return what it keeps of the answer."""
    headers = {"accept": "text/event-stream", "originator": "codex_cli_rs", "session_id": body["prompt_cache_key"]}
    async with http.stream("POST", "/responses", json=body, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines()]
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [line.removeprefix("event: ") for line in lines if line.startswith("event: ")] == [e["type"] for e in events]
    assert events[0]["type"] == "response.created"
    assert "response" in events[0]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == "".join(part["text"] for item in done if item["type"] == "message" for part in item["content"])
    last = events[-1]
    assert last["type"] == "response.completed"
    usage = last["response"]["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"]["reasoning_tokens"] >= 0
    assert last["response"]["id"]
    return [kept(item, is_whole=is_whole) for item in done]


def hermes(name, arguments):
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<think>\nI see.\n</think>\n\nNow {name}.\n<tool_call>\n{call}\n</tool_call>"


def harmony(name, arguments):
    thought = "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant"
    header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{thought}{header}{json.dumps(arguments)}<|call|>"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "written", "final", "is_whole"),
    [("qwen2_5", hermes, "{}", True), ("gptoss", harmony, "<|channel|>final<|message|>{}<|return|>", False)],
)
async def test_codex_works_over_several_turns_and_a_compaction(
    served, check_record, template, written, final, is_whole
):
    """R22."""
    talk, server = await served(template)
    texts = [*(written(*call) for call in CALLS), final.format("Done."), final.format("Files: a."), final.format("On.")]
    if template == "gptoss":  # its marks are tokens
        ids = [talk.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        texts = [Reply(each, np.zeros(len(each))) for each in ids]
    talk.texts = texts
    context = user("<permissions instructions>Ask first.</permissions instructions>", "developer")
    history = [context, user("<environment_context><cwd>/repo</cwd></environment_context>"), user("Add a.")]
    headers = {"authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers=headers, timeout=60) as http:
        said = []
        for name, arguments in CALLS:
            items = await turn(http, request(history), is_whole=is_whole)
            *thoughts, call = items
            said.append(call)
            assert thoughts[0]["content"] == [{"type": "reasoning_text", "text": "I see."}]
            output = {
                "type": f"{call['type']}_output",
                "call_id": call["call_id"],
                "output": "Exit code: 0\nOutput:\nok",
            }
            history += [*items, {**output, "id": f"fco_{name}"} if is_whole else output]
            if name == "shell":
                assert json.loads(call["arguments"]) == arguments
                history.append(user("<permissions instructions>Go on.</permissions instructions>", "developer"))
        assert [(call["type"], call["name"]) for call in said] == [
            ("function_call", "shell"),
            ("custom_tool_call", "apply_patch"),
            ("function_call", "find"),
        ]
        assert (said[1]["input"], said[2]["namespace"]) == (BEGIN, "mcp__docs__")
        history += await turn(http, request(history), is_whole=is_whole)
        assert [part["text"] for part in history[-1]["content"]] == ["Done."]
        # A compaction: it asks for a summary without any tools, and goes on from that alone.
        asked = request([*history, user(SUMMARY)], tools=[], reasoning=None, include=[])
        (summary,) = await turn(http, asked, is_whole=is_whole)
        schema = {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "strict": True, "schema": schema, "name": "codex_output_schema"}
        compacted = [context, user("Add a."), user(f"Summary: {summary['content'][0]['text']}"), user("And b?")]
        await turn(http, request(compacted, text={"verbosity": "low", "format": form}), is_whole=is_whole)
    requests = talk.engine.requests
    assert len(requests) == 6
    assert requests[-1].sampling.shape.grammar is not None
    for before, after in zip(range(3), range(1, 4), strict=True):  # one conversation: each prompt goes on from the last
        whole = [*requests[before].prompt_ids.tolist(), *talk.replies[before]]
        assert requests[after].prompt_ids.tolist()[: len(whole)] == whole
    check_record(talk.session.record(), requests, talk.replies)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("codex") is None, reason="the Codex CLI is not installed (npm: @openai/codex)")
async def test_the_codex_cli_itself_plays_one_conversation(served, check_record, tmp_path):
    """R22: seen with 0.171.0, which offers functions, a namespace and a search of the server's own."""
    texts = [
        hermes("exec_command", {"cmd": "echo h$((1 + 1))i"}),
        hermes("multi_agent_v1__close_agent", {"target": "x"}),
        hermes("nothing", {}),
        "Done.",
    ]
    talk, server = await served("qwen2_5", texts, max_context=1_000_000)
    provider = f'{{name="turngym",base_url="{server.session_url("s")}",env_key="TURNGYM_KEY",wire_api="responses"'
    options = [
        *("-c", 'model="m"', "-c", 'model_provider="turngym"', "-s", "danger-full-access", "--skip-git-repo-check"),
        *("-c", f"model_providers.turngym={provider},request_max_retries=0,stream_max_retries=0}}"),
    ]
    (tmp_path / "home").mkdir()
    program = await asyncio.create_subprocess_exec(
        *("codex", "exec", "--json", *options, "Say hi."),
        cwd=tmp_path,
        env={**os.environ, "CODEX_HOME": str(tmp_path / "home"), "TURNGYM_KEY": server.key},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(120):
            told, _ = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    events = [json.loads(line) for line in told.decode().splitlines() if line.startswith("{")]
    usage = next(event["usage"] for event in events if event["type"] == "turn.completed")
    assert usage["output_tokens"] == sum(map(len, talk.replies))
    assert any(event.get("item", {}).get("text") == "Done." for event in events)
    prompts = talk.prompts()
    assert len(prompts) == 4
    assert "h2i" in prompts[1]  # the command was run
    assert "invalid agent id x" in prompts[2]  # so was the tool of the namespace
    assert "unsupported call: nothing" in prompts[3]
    (sequence,) = talk.session.record().sequences
    assert sequence.num_actions == sum(map(len, talk.replies))
    check_record(talk.session.record(), talk.engine.requests, talk.replies)
