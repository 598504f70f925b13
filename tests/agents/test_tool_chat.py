"""Who tells the model of its tools, and what is parsed of its answers."""

from importlib.resources import files

import numpy as np
import pytest

from turngym.agents import ChatAgent, Sampling
from turngym.agents.tool_calls import tool_parser
from turngym.envs.messages import RawText
from turngym.envs.tools.calls import ToolCall
from turngym.errors import UnknownNameError

SAMPLING = Sampling(max_tokens=64)
PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
    }
]


def shown(tokenizer, conversation) -> str:
    return tokenizer.decode(conversation.prompt_ids())


def begin(tokenizer, tools=TOOLS, **options):
    return ChatAgent(tokenizer, **options).begin(tools)


def test_a_template_that_shows_tools_is_given_them(tokenizer_of):
    tokenizer = tokenizer_of((files("trl") / "chat_templates" / "qwen2_5.jinja").read_text())
    conversation = begin(tokenizer)
    conversation.observe([{"role": "user", "content": "2 + 3?"}])
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 3?"}], tools=TOOLS, add_generation_prompt=True, tokenize=False
    )
    assert '"name": "add"' in wanted
    assert shown(tokenizer, conversation) == wanted
    assert [message["role"] for message in conversation.messages] == ["user"]


def test_otherwise_a_system_message_tells_of_them(tokenizer_of):
    tokenizer = tokenizer_of(PLAIN)
    conversation = begin(tokenizer)
    conversation.observe([{"role": "user", "content": "2 + 3?"}])
    text = shown(tokenizer, conversation)
    assert text.startswith("<|system|>You can call functions.")
    assert '{"type": "function", "function": {"name": "add"' in text
    assert text.endswith("<eos><|user|>2 + 3?<eos><|assistant|>")
    conversation.observe([{"role": "user", "content": "And 1 + 1?"}])
    assert shown(tokenizer, conversation).count("You can call functions") == 1
    own = begin(tokenizer)
    own.observe([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3?"}])
    assert shown(tokenizer, own).startswith("<|system|>Be brief.\n\nYou can call functions.")


def test_where_there_is_no_system_message_the_user_tells_of_them(tokenizer_of):
    tokenizer = tokenizer_of(NO_SYSTEM)
    conversation = begin(tokenizer)
    conversation.observe([{"role": "user", "content": "2 + 3?"}])
    text = shown(tokenizer, conversation)
    assert text.startswith("<|user|>You can call functions.")
    assert text.endswith("}\n\n2 + 3?<eos><|assistant|>")


def test_raw_text_is_told_nothing(tokenizer_of):
    tokenizer = tokenizer_of(PLAIN)
    conversation = begin(tokenizer)
    conversation.observe(RawText("2 + 3 ="))
    assert shown(tokenizer, conversation) == "2 + 3 ="
    plain = begin(tokenizer, apply_chat_template=False)
    plain.observe([{"role": "user", "content": "2 + 3 ="}])
    assert shown(tokenizer, plain) == "2 + 3 ="
    plain.observe([{"role": "tool", "name": "add", "content": "5"}])
    assert shown(tokenizer, plain) == "2 + 3 =<tool_response>\n5\n</tool_response>"


def test_answers_come_parsed_and_tokens_stay_as_they_were_sampled(tokenizer_of, completion_of):
    tokenizer = tokenizer_of(PLAIN)
    conversation = begin(tokenizer)
    conversation.observe([{"role": "user", "content": "2 + 3?"}])
    prompt = conversation.prompt_ids()
    # Byte by byte: not the tokens that the tokenizer would make of this text.
    text = '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
    ids = [token for character in text for token in tokenizer.encode(character, add_special_tokens=False)]
    ids.append(tokenizer.eos_token_id)
    action = conversation.record(completion_of(ids), SAMPLING)
    assert action.parsed == ("", (ToolCall("add", {"a": 2}),))
    conversation.observe([{"role": "tool", "name": "add", "content": "5"}])
    twin = conversation.fork()
    for each in (conversation, twin):
        each.record(completion_of([*tokenizer.encode("5"), tokenizer.eos_token_id]), SAMPLING)
        (sequence,) = each.sequences()
        assert sequence.token_ids[: len(prompt) + len(ids)].tolist() == [*prompt.tolist(), *ids]
        actions = np.flatnonzero(sequence.is_action)
        assert tokenizer.decode(sequence.token_ids[actions]) == f"{text}<eos>5<eos>"


@pytest.mark.parametrize("name", [None, "phi3", "gptoss", "gemma"])  # drops, refuses without its own form, refuses
def test_results_are_shown_whatever_the_template_does_with_them(tokenizer_of, completion_of, name):
    template = PLAIN if name is None else (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    tokenizer = tokenizer_of(template)
    conversation = begin(tokenizer)
    conversation.observe([{"role": "user", "content": "2 + 3?"}])
    ids = tokenizer.encode('<tool_call>{"name": "add"}</tool_call>')
    conversation.record(completion_of(ids), SAMPLING)
    results = [{"role": "tool", "name": "add", "tool_call_id": f"call_{n}", "content": f"zq{n}qz"} for n in (5, 6)]
    conversation.observe(results)
    text = shown(tokenizer, conversation)
    if name is None:
        assert "<|tool|>zq5qz<eos><|tool|>zq6qz<eos>" in text
    else:
        assert "<tool_response>\nzq5qz\n</tool_response>\n<tool_response>\nzq6qz\n</tool_response>" in text
        assert conversation.messages[-1]["role"] == "user"


def test_conversations_without_tools_parse_nothing(tokenizer_of, completion_of):
    tokenizer = tokenizer_of(PLAIN)
    for tools in (None, []):
        conversation = begin(tokenizer, tools)
        conversation.observe([{"role": "user", "content": "2 + 3?"}])
        assert conversation.record(completion_of(tokenizer.encode("5")), SAMPLING).parsed is None


def test_a_template_is_probed_once_for_each_set_of_tools(tokenizer_of):
    agent = ChatAgent(tokenizer_of(PLAIN))
    first, second = agent.begin(TOOLS), agent.begin([dict(TOOLS[0])])
    assert first._told is second._told


def test_parsers_have_names():
    assert tool_parser().parse("5") == ("5", ())
    with pytest.raises(UnknownNameError, match="Did you mean 'json'"):
        tool_parser("jsonn")
