"""Llama's JSON: several calls, text around them, and what is no call."""

import pytest

from turngym.agents.llama_calls import LlamaCalls
from turngym.envs.tools.calls import ToolCall

A, B = '{"name":"a","parameters":{"x":1}}', '{"name":"b","parameters":{"y":2}}'
CALL_A, CALL_B = ToolCall("a", {"x": 1}), ToolCall("b", {"y": 2})


@pytest.mark.parametrize("between", [";", "; ", "\n", ",", ""])
def test_calls_follow_one_another(between):
    assert LlamaCalls().parse(f"<|python_tag|>{A}{between}{B}") == ("", (CALL_A, CALL_B))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (A, ("", (CALL_A,))),
        (A + " see {searchTool}", ("see {searchTool}", (CALL_A,))),
        (A + ' then {"query": "x"}', ('then {"query": "x"}', (CALL_A,))),
        ("I call " + A, ("I call", (CALL_A,))),
        ('{"type": "function", "function": "a", "parameters": {"x": 1}}', ("", (CALL_A,))),
        ('{"name": "a", "arguments": {"x": 1}}', ("", (CALL_A,))),
        ('The set {1, 2} and {"name": "Ann"}', ('The set {1, 2} and {"name": "Ann"}', ())),
        ("{", ("{", ())),
        ("", ("", ())),
    ],
)
def test_what_is_a_call_and_what_is_text(text, wanted):
    assert LlamaCalls().parse(text) == wanted


@pytest.mark.parametrize("text", ['{"name": "a", "parameters": {"x": 1}', '<|python_tag|>{"name": "a", }'])
def test_a_call_that_cannot_be_read_goes_back_to_the_model(text):
    (call,) = LlamaCalls().parse(text).calls
    assert call.name == ""
    assert '"parameters"' in call.problem
