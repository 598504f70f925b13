"""A call and its result, with every public template that tells of tools: shown as it renders them, without a fork.

The model writes the call as the template itself does; most of these formats are read by vLLM's parsers, which take
seconds to import.
"""

from dataclasses import replace
from importlib.resources import files

import pytest

from turngym.agents import ChatAgent
from turngym.agents.parser_guess import guess_tool_parser
from turngym.agents.tool_calls import TOOL_PARSERS
from turngym.agents.vllm_names import OfVllm
from turngym.envs.tools.calls import ParsedAnswer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "A."},
                    "b": {"type": "string", "description": "B."},
                },
                "required": ["a"],
            },
        },
    }
]
TEMPLATES = {
    path.name.removesuffix(".jinja"): path.read_text(encoding="utf-8")
    for path in files("trl").joinpath("chat_templates").iterdir()
    if path.name.endswith(".jinja")
}
USER = {"role": "user", "content": "2 + 3?"}
CALL = {"type": "function", "id": "call_0", "function": {"name": "add", "arguments": {"a": 2, "b": "x"}}}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call_0", "content": "zq5qz"}


def marked(name):
    is_slow = isinstance(TOOL_PARSERS[guess_tool_parser(TEMPLATES[name]).name], OfVllm)
    return pytest.param(name, marks=pytest.mark.slow) if is_slow else name


def shows_calls(name):
    return "tools" in TEMPLATES[name] and "tool_calls" in TEMPLATES[name]


def answer(thought: str | None) -> dict[str, object]:
    fields = {} if thought is None else {"reasoning_content": thought, "thinking": thought}
    return {"role": "assistant", "content": "", "tool_calls": [CALL], **fields}


@pytest.mark.parametrize("thought", [None, "I add."])
@pytest.mark.parametrize("name", [marked(name) for name in sorted(TEMPLATES) if shows_calls(name)])
def test_history_goes_on(name, thought, tokenizer_of, completion_of, sampling):
    more = "{#<|tool_call_start|><|tool_call_end|>#}" if name.startswith("lfm2") else ""  # tokens of its tokenizer
    tokenizer = tokenizer_of(TEMPLATES[name] + more)
    agent = ChatAgent(tokenizer)
    conversation = agent.begin(TOOLS)
    template = conversation._told.template
    conversation.observe([USER])
    prompt = tokenizer.decode(conversation.prompt_ids())
    said = answer(thought)
    whole = template.render([USER, said], add_generation_prompt=False)
    if not whole.startswith(prompt):
        pytest.skip("its generation prompt wants thoughts, or none")
    ids = tokenizer.encode(whole.removeprefix(prompt), add_special_tokens=False)
    ends = [place for place, token_id in enumerate(ids) if token_id in agent.end_of_turn_ids]
    ids = ids[: ends[0] + 1] if ends else ids
    action = conversation.record(completion_of(ids), sampling)
    assert [(call.name, dict(call.arguments)) for call in action.parsed.calls] == [("add", {"a": 2, "b": "x"})]
    conversation.observe([RESULT])
    own = template.render([USER, said, RESULT], add_generation_prompt=True)
    assert tokenizer.decode(conversation.prompt_ids()) == own
    rewrites = not own.startswith(prompt + tokenizer.decode(ids))  # an empty thought is shown in the last answer only
    assert len(conversation.forks) == rewrites
    sequence = conversation.sequences()[0]
    assert sequence.token_ids[sequence.is_action].tolist() == ids


def test_gpt_oss_may_write_the_channel_first(tokenizer_of, completion_of, sampling):
    tokenizer = tokenizer_of(TEMPLATES["gptoss"])
    conversation = ChatAgent(tokenizer).begin(TOOLS)
    conversation.observe([USER])
    prompt = tokenizer.decode(conversation.prompt_ids())
    written = (
        "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2, "b": "x"}<|call|>'
    )
    ids = tokenizer.encode(written, add_special_tokens=False)
    action = conversation.record(completion_of(ids), sampling)
    assert [call.name for call in action.parsed.calls] == ["add"]
    conversation.observe([RESULT])
    shown = tokenizer.decode(conversation.prompt_ids())
    result = '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"zq5qz"<|end|>'
    assert shown == f"{prompt}{written}{result}<|start|>assistant"  # token for token what was sampled, and its result
    assert conversation.forks == ()


def test_a_call_that_cannot_be_read_is_followed_by_a_message_of_the_user(tokenizer_of, completion_of, sampling):
    tokenizer = tokenizer_of(TEMPLATES["gptoss"])
    conversation = ChatAgent(tokenizer).begin(TOOLS)
    conversation.observe([USER])
    written = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": <|call|>'
    action = conversation.record(completion_of(tokenizer.encode(written, add_special_tokens=False)), sampling)
    (call,) = action.parsed.calls
    conversation.observe([{**RESULT, "content": call.problem}])
    shown = tokenizer.decode(conversation.prompt_ids())
    assert "<tool_response>\nThe arguments are no JSON" in shown


def test_marks_of_calls_that_are_special_tokens_are_read(tokenizer_of, completion_of, sampling, monkeypatch):
    class Marked:
        def parse(self, text):
            return ParsedAnswer(text, ())

    monkeypatch.setitem(TOOL_PARSERS._entries, "marked", Marked)
    template = TEMPLATES["qwen2_5"] + "{#<|tool_call_end|><|section_end|>#}"
    tokenizer = tokenizer_of(template)
    conversation = ChatAgent(tokenizer, tool_parser="marked").begin(TOOLS)
    conversation.observe([USER])
    written = "5<|tool_call_end|><|section_end|>"
    for end, stop_ids in (("<|im_end|>", ()), ("<eos>", ()), ("<bos>", (tokenizer.bos_token_id,)), ("", ())):
        twin = conversation.fork()
        ids = tokenizer.encode(written + end, add_special_tokens=False)
        action = twin.record(completion_of(ids), replace(sampling, stop_token_ids=stop_ids))
        assert action.parsed.content == written


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5", "gptoss"])
def test_arguments_that_are_nested_deeply_end_no_episode(name, tokenizer_of, completion_of, sampling):
    for depth in (40, 600, 2000):
        deep = '{"a":' * depth + "1" + "}" * depth
        written = f'<tool_call>{{"name": "add", "arguments": {deep}}}</tool_call>'
        if name == "gptoss":
            written = f"<|channel|>commentary to=functions.add json<|message|>{deep}<|call|>"
        tokenizer = tokenizer_of(TEMPLATES[name])
        conversation = ChatAgent(tokenizer).begin(TOOLS)
        conversation.observe([USER])
        conversation.record(completion_of(tokenizer.encode(written, add_special_tokens=False)), sampling)
        conversation.observe([RESULT])
        assert "zq5qz" in tokenizer.decode(conversation.prompt_ids())
