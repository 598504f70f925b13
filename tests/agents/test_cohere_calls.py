"""Cohere's lists of calls, and the marks around its text."""

import pytest

from turngym.agents.cohere_calls import CohereCalls
from turngym.envs.tools.calls import ToolCall

ONE = '{"tool_call_id": "0", "tool_name": "add", "parameters": {"a": 2}}'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"<|START_ACTION|>[{ONE}]<|END_ACTION|>", ("", (ToolCall("add", {"a": 2}, id="0"),))),
        (
            f"<|START_ACTION|>[{ONE}, {ONE}]",
            ("", (ToolCall("add", {"a": 2}, id="0"),) * 2),
        ),
        ("<|START_RESPONSE|>5<|END_RESPONSE|>", ("5", ())),
        ("<|START_TEXT|>5<|END_TEXT|>", ("5", ())),
    ],
)
def test_calls(text, wanted):
    assert CohereCalls().parse(text) == wanted


@pytest.mark.parametrize("block", ["", "[", "1", '[{"tool_call_id": "0"}]', '[{"tool_name": 3, "parameters": {}}]'])
def test_what_cannot_be_read_goes_back_to_the_model(block):
    (call,) = CohereCalls().parse(f"<|START_ACTION|>{block}<|END_ACTION|>").calls
    assert '"tool_name": "TOOL"' in call.problem
