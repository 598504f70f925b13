"""Both generations of Mistral's format, and text behind a call."""

import pytest

from turngym.agents.mistral_calls import MistralCalls
from turngym.envs.tools.calls import ToolCall


def calc(text):
    return ToolCall("calc", {"e": text})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[TOOL_CALLS] [{"name": "calc", "arguments": {"e": "2+3"}}]', ("", (calc("2+3"),))),
        ('[TOOL_CALLS]calc[ARGS]{"e": "2+3"}[TOOL_CALLS]calc[ARGS]{"e": "4"}', ("", (calc("2+3"), calc("4")))),
        ('[TOOL_CALLS]calc[ARGS]{"e": "4"}\n\nA sentence.', ("A sentence.", (calc("4"),))),
        ('Hi[TOOL_CALLS]calc{"e": "4"}', ("Hi", (calc("4"),))),
        ('[TOOL_CALLS]calc[CALL_ID]abc123def[ARGS]{"e": "4"}', ("", (ToolCall("calc", {"e": "4"}, id="abc123def"),))),
        (
            '[TOOL_CALLS][{"name": "calc", "arguments": {"e": "4"}, "id": "abc123def"}]',
            ("", (ToolCall("calc", {"e": "4"}, id="abc123def"),)),
        ),
        ("5", ("5", ())),
    ],
)
def test_calls(text, wanted):
    assert MistralCalls().parse(text) == wanted


@pytest.mark.parametrize("block", ["", "calc", 'calc[ARGS]{"e": ', '[{"name": "calc"', "[]", "[1]", "calc[ARGS]2"])
def test_what_cannot_be_read_goes_back_to_the_model(block):
    (call,) = MistralCalls().parse("[TOOL_CALLS]" + block).calls
    assert "[TOOL_CALLS]TOOL[ARGS]" in call.problem
