"""Every parser of calls by its name: none raises, whatever is written, and none runs what it reads."""

import random

import pytest

from turngym.agents.tool_calls import _OURS, TOOL_PARSERS, tool_parser
from turngym.agents.vllm_names import VLLM_TOOL_PARSERS, OfVllm
from turngym.errors import ConfigError

WHOLE = {
    "json": '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>',
    "openai": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}<|call|>',
    "llama3_json": '<|python_tag|>{"name": "add", "parameters": {"a": 2}}',
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 2}',
    "cohere_command3": '<|START_ACTION|>[{"tool_name": "add", "parameters": {"a": 2}}]<|END_ACTION|>',
}
PIECES = [
    *WHOLE.values(),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *(
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|call|>",
        "to=",
        "functions.add",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
    ),
    *(
        '{"name": "add", "parameters": ',
        '{"a": ',
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        "\n",
        "null",
        "NaN",
        "1e999",
        "\ud800",
    ),
    *("[" * 3000, '{"a":' * 3000, "{" * 3000),
]


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_that_a_model_writes_raises(name):
    parser, whole = tool_parser(name), WHOLE[name]
    assert [(call.name, call.arguments) for call in parser.parse(whole).calls] == [("add", {"a": 2})]
    rng = random.Random(0)
    written = [whole[:stop] for stop in range(len(whole))]
    written += [whole.replace("2", whole), whole + whole]
    written += ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(150)]
    for text in written:
        content, calls = parser.parse(text)
        assert isinstance(content, str)
        assert all(call.name or call.problem for call in calls)


def test_whole_calls_are_those_of_our_own_parsers():
    assert {_OURS[name] for name in WHOLE} == {*_OURS.values()}


def test_names_are_those_of_vllm_and_ours():
    assert {*TOOL_PARSERS} >= {*_OURS, *VLLM_TOOL_PARSERS}
    assert not {*_OURS} & {*VLLM_TOOL_PARSERS}
    assert TOOL_PARSERS["qwen3_coder"] == OfVllm("qwen3_coder")
    with pytest.raises(ConfigError, match="'qwen3_coder' is vLLM's, and wants the model's tokenizer"):
        tool_parser("qwen3_coder")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("text", ["Same today. Tomorrow at ", "\n 5\n\n", " ", ""])
def test_without_calls_the_text_stays_as_it_was_written(name, text):
    assert tool_parser(name).parse(text) == (text, ())
    content, calls = tool_parser(name).parse(WHOLE[name])
    assert (content, len(calls)) == ("", 1)
