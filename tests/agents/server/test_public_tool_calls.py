"""Tool calls that real models wrote and real parsers lost, through the server, whole and streamed."""

import json
from pathlib import Path

import httpx
import openai
import pytest

from turngym.executors.engines.scripted import Reply

USER = {"role": "user", "content": "Go on."}
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% else %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% endif %}{% endfor %}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{# [TOOL_CALLS] #}"
)
DEEPSEEK = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<@{{ m.role }}@>{{ m.content }}"
    "{% if m.role == 'assistant' %}<@end@>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<@assistant@><think>\n{% endif %}"
).replace("@", "\uff5c")
DSML = (
    'I look.</think>\n\n<@DSML@function_calls>\n<@DSML@invoke name="bash">\n'
    '<@DSML@parameter name="command" string="true">ls -la /nope 2>&1</@DSML@parameter>\n'
    "</@DSML@invoke>\n</@DSML@function_calls>"
).replace("@", "\uff5c")


def function(name: str, **kinds: str) -> dict:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


@pytest.fixture
def asked(served):
    """Ask once for a whole answer and once for a stream; both say the same of the same tokens, which are recorded."""

    async def ask(template, text, tools, *, size=1, **options):
        talk, server = await served(template, **options)
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        ids = [token for piece in pieces for token in talk.tokenizer.encode(piece, add_special_tokens=False)]
        ids += talk.agent.end_of_turn_ids or (talk.tokenizer.eos_token_id,)
        talk.texts = [Reply(ids, [-0.5] * len(ids))] * 2
        client = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
        request = {"model": "m", "messages": [USER], "tools": tools}
        (whole,) = (await client.chat.completions.create(**request)).choices
        async with client.chat.completions.stream(**request) as stream:
            (streamed,) = (await stream.get_final_completion()).choices
        for choice in (whole, streamed):
            assert (choice.message.content or "") == (whole.message.content or "")
            assert choice.finish_reason == whole.finish_reason
            assert read(choice) == read(whole)
        for sequence in (await server.close("s")).sequences:
            assert sequence.token_ids[sequence.is_action].tolist() == ids
        calls = [(name, json.loads(arguments)) for name, arguments in read(whole)]
        return calls, whole.message.content or "", whole.finish_reason

    return ask


def read(choice) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]


RUN = '{"name": "run", "arguments": {"cmd": "mkdir -p t/{a,b"}}'


@pytest.mark.parametrize("parser", [None, "hermes"])
@pytest.mark.parametrize(
    ("text", "commands"),
    [
        (f"<tool_call>{RUN}</tool_call>", ["mkdir -p t/{a,b"]),
        (f"<tool_call>\n{RUN}\n{RUN.replace('mkdir', 'rmdir')}\n</tool_call>", ["mkdir -p t/{a,b", "rmdir -p t/{a,b"]),
    ],
)
async def test_hermes_with_a_lone_brace_in_a_string_and_two_objects_in_a_block(asked, parser, text, commands):
    """R14."""
    calls, content, reason = await asked("qwen2_5", text, [function("run", cmd="string")], tool_parser=parser)
    assert calls == [("run", {"cmd": command}) for command in commands]
    assert (content, reason) == ("", "tool_calls")


@pytest.mark.slow  # vLLM's parser
@pytest.mark.parametrize(
    ("name", "parameter", "given"),
    [
        ("day", "2026-01-15", {"day": "2026-01-15"}),  # the environment says that this is no whole number
        ("n", "", {}),
        ("n", "None", {}),
        ("text", "", {"text": ""}),
        ("text", "None", {"text": "None"}),
        (
            "items",
            '__import__("os").system("touch /tmp/pwned")',
            {"items": '__import__("os").system("touch /tmp/pwned")'},
        ),
        ("items", "[1, 2, 3]", {"items": [1, 2, 3]}),
    ],
)
async def test_qwen3_coder_with_values_that_do_not_fit_their_type(asked, name, parameter, given):
    """R15."""
    Path("/tmp/pwned").unlink(missing_ok=True)
    tool = function("log", day="integer", n="integer", text="string", items="array")
    text = f"<tool_call><function=log><parameter={name}>{parameter}</parameter></function></tool_call>"
    calls, content, reason = await asked("qwen2_5", text, [tool], tool_parser="qwen3_coder")
    assert calls == [("log", given)]
    assert (content, reason) == ("", "tool_calls")
    assert not Path("/tmp/pwned").exists()


A, B = '{"name":"a","parameters":{"x":1}}', '{"name":"b","parameters":{"y":2}}'
BOTH = [("a", {"x": 1}), ("b", {"y": 2})]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f"<|python_tag|>{A};{B}", BOTH, ""),
        (f"<|python_tag|>{A}; {B}", BOTH, ""),
        (f"<|python_tag|>{A}\n{B}", BOTH, ""),
        (f"{A} I could also use {{searchTool}}.", BOTH[:1], "I could also use {searchTool}."),
        (f'{A} or {{"query": "x"}}', BOTH[:1], 'or {"query": "x"}'),
    ],
)
async def test_llama_with_separators_and_prose(asked, size, text, calls, content):
    """R16."""
    tools = [function("a", x="integer"), function("b", y="integer")]
    got = await asked("llama3_1", text, tools, size=size, tool_parser="llama3_json", marks=["<|python_tag|>"])
    assert got == (calls, content, "tool_calls")


@pytest.mark.parametrize("marks", [(), ("[TOOL_CALLS]", "[ARGS]")])
@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('[TOOL_CALLS] [{"name": "calc", "arguments": {"e": "2+3"}}]', [("calc", {"e": "2+3"})], ""),
        (
            '[TOOL_CALLS]calc[ARGS]{"e": "2+3"}[TOOL_CALLS]calc[ARGS]{"e": "4"}',
            [("calc", {"e": "2+3"}), ("calc", {"e": "4"})],
            "",
        ),
        ('[TOOL_CALLS]grep[ARGS]{"p": "TODO"}\n\nI look for it.', [("grep", {"p": "TODO"})], "I look for it."),
    ],
)
async def test_both_generations_of_mistrals_format(asked, marks, text, calls, content):
    """R17."""
    tools = [function("calc", e="string"), function("grep", p="string")]
    assert await asked(MISTRAL, text, tools, marks=marks) == (calls, content, "tool_calls")


AFTER = "<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
HEADERS = [
    ("??", [], "??"),
    ("commentary 2?", [], "commentary 2?"),
    ("commentary?commentary?", [], "commentary?commentary?"),
    ("commentary to=assistant<|channel|>commentary?", [], "commentary to=assistantcommentary?"),
    ("commentary? to=functions.web-browsing", [], None),  # a call without arguments: the model is told
]


@pytest.mark.parametrize(("header", "calls", "content"), HEADERS)
async def test_malformed_headers_of_gpt_oss(served, header, calls, content):
    """R20: the turn is kept with its tokens, and the episode goes on."""
    text = f"<|channel|>{header}{AFTER}"
    talk, server = await served("gptoss", [text, "<|channel|>final<|message|>Done."], tool_parser="openai")
    client = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    tools = [function("web-search", q="string")]
    (first,) = (await client.chat.completions.create(model="m", messages=[USER], tools=tools)).choices
    assert read(first) == calls
    if content is not None:
        assert first.message.content == content
    history = [USER, {"role": "assistant", "content": first.message.content}, {"role": "user", "content": "And?"}]
    async with client.chat.completions.stream(model="m", messages=history, tools=tools) as stream:
        (last,) = (await stream.get_final_completion()).choices
    assert last.message.content == "Done."
    if content is None:
        assert "has no arguments" in talk.prompts()[1]
    record = await server.close("s")
    sampled = [token for s in record.sequences for token in s.token_ids[s.is_action].tolist()]
    assert sampled == [token for reply in talk.replies for token in reply]


@pytest.mark.slow  # vLLM's parsers
async def test_deepseeks_mark_without_a_call_and_a_closing_mark_in_an_argument(asked):
    """R21."""
    tools, mark = [function("bash", command="string")], "<\uff5ctool▁calls▁begin\uff5c>"
    marks = [f"<\uff5ctool▁{part}\uff5c>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")]
    got = await asked("deepseekv3", f"Hm.</think>\n\n{mark}I will now", tools, tool_parser="deepseek_v3", marks=marks)
    assert got == ([], f"{mark}I will now", "stop")
    got = await asked(DEEPSEEK, DSML, tools, tool_parser="deepseek_v32")
    assert got == ([("bash", {"command": "ls -la /nope 2>&1"})], "", "tool_calls")


async def test_captured_ids_are_the_same_however_they_were_asked_for(served):
    """R27: whatever the parser hides from the client, such as marks that are special tokens."""
    text = 'I look.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
    tools = [function("run", cmd="string")]
    talk, server = await served("qwen2_5", [text] * 4, marks=["<tool_call>", "</tool_call>"])
    ids = [*talk.tokenizer.encode(text, add_special_tokens=False), *talk.agent.end_of_turn_ids]
    marks = talk.tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    assert [token for token in ids if token in marks] == marks
    talk.texts = [Reply(ids, [-0.5] * len(ids))] * 4
    client = openai.AsyncOpenAI(base_url=server.session_url("s"), api_key=server.key, max_retries=0)
    asks = [
        {},
        {"stream": True},
        {"stream": True, "tools": tools, "tool_choice": "none"},
        {"stream": True, "tools": tools},
    ]
    shown = []
    for ask in asks:
        request = {"model": "m", "messages": [USER], "extra_body": {"return_token_ids": True}, **ask}
        answer = await client.chat.completions.create(**request)
        if ask:
            chunks = [chunk async for chunk in answer]
            told = [t for chunk in chunks for c in chunk.choices for t in (c.model_extra or {}).get("token_ids") or []]
            shown.append("".join(c.delta.content or "" for chunk in chunks for c in chunk.choices))
        else:
            told = answer.choices[0].model_extra["token_ids"]
            shown.append(answer.choices[0].message.content)
        assert told == ids
    assert len({text.strip() for text in shown[:3]}) == 1
    assert (shown[3], '"cmd"' in shown[0]) == ("I look.", True)
    for sequence in (await server.close("s")).sequences:
        assert sequence.token_ids[sequence.is_action].tolist() == ids


async def test_what_a_template_refuses_is_a_bad_request(served):
    """R22: of `/v1/responses` as well."""
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}<|assistant|>"
    _, server = await served(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + template
    )
    headers = {"authorization": f"Bearer {server.key}"}
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers=headers) as http:
        answer = await http.post("/responses", json={"instructions": "Be brief.", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert "no system" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("shape", "plain"),
    [
        (
            [
                {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "text", "text": "I look."}],
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "noon"}]},
            ],
            [
                {"role": "user", "content": "Hi there"},
                {
                    "role": "assistant",
                    "content": "I look.",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "noon"},
            ],
        ),
        (
            [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "noon"},
            ],
            [
                USER,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": "noon"},
            ],
        ),
        ([USER, {"role": "assistant", "content": ""}, USER], [USER, {"role": "assistant", "content": ""}, USER]),
        (
            [
                {**USER, "name": "UnnamedAgent"},
                {"role": "assistant", "content": "a", "name": "UnnamedAgent"},
                {**USER, "name": "UnnamedAgent"},
            ],
            [USER, {"role": "assistant", "content": "a"}, USER],
        ),
        (
            [USER, {"role": "assistant", "content": "a", "tool_calls": []}, USER],
            [USER, {"role": "assistant", "content": "a"}, USER],
        ),
    ],
    ids=["parts", "no content", "empty answer", "name", "no calls"],
)
async def test_shapes_of_frameworks_are_rendered_as_what_they_say(served, shape, plain):
    """R25."""
    talk, server = await served()
    async with httpx.AsyncClient(base_url=server.session_url("s"), headers={"x-api-key": server.key}) as http:
        for messages in (shape, plain):
            answer = await http.post("/chat/completions", json={"messages": messages})
            assert answer.status_code == 200, answer.text
    first, second = talk.prompts()
    assert first == second
    assert first.count("<|im_start|>assistant\n") == 2  # the given answer is a turn, be it empty, and the prompt's
