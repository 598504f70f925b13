import json

import numpy as np
import pytest

from turngym.envs.tools.calls import ToolCall
from turngym.envs.tools.json_calls import JSON_CALLS, MOST_DEPTH, behind_thought

ADD = '{"name": "add", "arguments": {"a": 1}}'
CALL = ToolCall("add", {"a": 1})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("42", "42", ()),
        (f"<tool_call>{ADD}</tool_call>", "", (CALL,)),
        (
            f"I add.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>{ADD}</tool_call> Done.",
            "I add.\n\n Done.",
            (CALL, CALL),
        ),
        (f"<tool_call>{ADD}\n{ADD}</tool_call>", "", (CALL, CALL)),  # two objects in one block
        (f"<tool_call>[{ADD}, {ADD}]</tool_call>", "", (CALL, CALL)),
        (f"<tool_call>{ADD}", "", (CALL,)),  # a stop string took the end
        (f"<tool_call>{ADD}<tool_call>{ADD}</tool_call>", "", (CALL, CALL)),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", (CALL,)),
        (
            '<tool_call>{"name": "add", "parameters": {"a": 1}, "id": "x7"}</tool_call>',
            "",
            (ToolCall("add", {"a": 1}, id="x7"),),
        ),
        ('<tool_call>{"name": "now"}</tool_call>', "", (ToolCall("now", {}),)),
        # Braces and tags inside of strings are text.
        (
            '<tool_call>{"name": "run", "arguments": {"cmd": "mkdir -p t/{a,b"}}</tool_call>',
            "",
            (ToolCall("run", {"cmd": "mkdir -p t/{a,b"}),),
        ),
        (
            '<tool_call>{"name": "run", "arguments": {"cmd": "echo </tool_call>"}}</tool_call>ok',
            "ok",
            (ToolCall("run", {"cmd": "echo </tool_call>"}),),
        ),
        # Plain JSON is a call only if it is nothing else.
        (ADD, "", (CALL,)),
        (f" [{ADD}, {ADD}]\n", "", (CALL, CALL)),
        ('{"name": "Ada"}', '{"name": "Ada"}', ()),
        (f"The call was {ADD}", f"The call was {ADD}", ()),
        ("[]", "[]", ()),
        ("{" * 100_000, "{" * 100_000, ()),
    ],
)
def test_calls_are_taken_out_of_answers(text, content, calls):
    assert JSON_CALLS.parse(text) == (content, calls)


MARKED = """<tool_call>{"name": "add", "arguments": {"a": "</think>"}}</tool_call>"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("42", "42"),
        (f"<think>perhaps <tool_call>{ADD}</tool_call></think>No.", "No."),  # a thought calls nothing
        (f"<think>perhaps <tool_call>{ADD}</tool_call>", ""),  # one that never ended says nothing
        (f" \n<think>Hm.</think>{MARKED}", MARKED),
        (f"Hm.</think>{MARKED}", MARKED),  # the prompt opened it
        (MARKED, MARKED),
        (f"I add.\n{MARKED}", f"I add.\n{MARKED}"),
        ('{"name": "add", "arguments": {"a": "</think>"}}', '{"name": "add", "arguments": {"a": "</think>"}}'),
        ("Between <think> and </think>.", "Between <think> and </think>."),
    ],
)
def test_only_what_an_answer_begins_with_is_its_thought(text, said):
    assert behind_thought(text) == said


@pytest.mark.parametrize(
    ("block", "name", "told"),
    [
        ('{"name": "add", "arguments": {"a": 1}', "", "as JSON (Expecting"),
        ('{"name": "add", "arguments": {"a": "', "", "Unterminated string"),
        ("add(1)", "", "wants the form"),
        ("", "", "the block is empty"),
        ("7", "", "it has no name"),
        ('{"arguments": {}}', "", "it has no name"),
        ('{"name": "add", "arguments": [1]}', "add", "want to be an object, got list"),
        ('{"name": "add", "arguments": "{"}', "add", "no JSON"),
        ("[" * 100_000, "", "nested too deeply"),
    ],
)
@pytest.mark.parametrize("close", ["</tool_call>", ""])
def test_a_call_that_cannot_be_read_says_why(block, name, told, close):
    (call,) = JSON_CALLS.parse(f"<tool_call>{block}{close}").calls
    assert call.name == name
    assert call.problem is not None
    assert told in call.problem


def nested(levels: int) -> str:
    """An object as JSON, of so many levels."""
    return '{"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


@pytest.mark.parametrize("as_text", [False, True])
def test_a_call_is_nested_as_deeply_as_may_be_and_no_deeper(as_text):
    for levels in (MOST_DEPTH, MOST_DEPTH + 1, 600):
        arguments = json.dumps(nested(levels)) if as_text else nested(levels)
        (call,) = JSON_CALLS.parse(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>').calls
        assert call.name == "add"
        assert (call.problem is None) == (levels == MOST_DEPTH)
    assert call.arguments == {}
    assert call.problem == "The arguments are nested too deeply: 64 levels of objects and lists are the most."


def test_what_follows_an_unreadable_block_is_read():
    content, calls = JSON_CALLS.parse(f"<tool_call>nonsense</tool_call> and <tool_call>{ADD}</tool_call>")
    assert content == "and"
    assert [call.problem is None for call in calls] == [False, True]


def test_whatever_a_model_writes_is_read_without_an_error():
    pieces = [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        *ADD,
        ADD,
        "{",
        "[",
        ",",
        '"',
        "\\",
        "\ud800",
        "1e999",
        " ",
    ]
    rng = np.random.default_rng(0)
    num_calls = 0
    for _ in range(3000):
        chosen = rng.integers(len(pieces), size=rng.integers(1, 30))
        content, calls = JSON_CALLS.parse("".join(pieces[place] for place in chosen))
        assert isinstance(content, str)
        assert all((call.problem is None) == bool(call.name) or call.problem for call in calls)
        num_calls += len(calls)
    assert num_calls > 100


def test_a_long_answer_is_read_in_one_go():
    (first, *_, last) = JSON_CALLS.parse("<tool_call>" + "1," * 50_000).calls
    assert first == last
