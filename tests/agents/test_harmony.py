"""GPT-OSS's messages: whole ones, and the broken headers that models sample."""

import pytest

from turngym.agents.harmony import HarmonyCalls, HarmonyThoughts, with_recipients_first
from turngym.envs.tools.calls import ToolCall

THOUGHT = "<|channel|>analysis<|message|>I add.<|end|>"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 2}<|call|>'


def read(text):
    reasoning, content = HarmonyThoughts().split(text)
    return reasoning, *HarmonyCalls().parse(content)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5", (None, "5", ())),
        ("<|channel|>final<|message|>5<|return|>", (None, "5", ())),
        (THOUGHT + "<|start|>assistant<|channel|>final<|message|>5", ("I add.", "5", ())),
        (THOUGHT + "<|start|>assistant" + CALL, ("I add.", "", (ToolCall("add", {"a": 2}),))),
        (' to=functions.add<|channel|>commentary json<|message|>{"a": 2}', (None, "", (ToolCall("add", {"a": 2}),))),
        (
            "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant" + CALL,
            (None, "Let me see.", (ToolCall("add", {"a": 2}),)),
        ),
        (CALL + "<|start|>assistant" + CALL, (None, "", (ToolCall("add", {"a": 2}),) * 2)),
        (THOUGHT.removesuffix("<|end|>"), ("I add.", "", ())),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", ("a\nb", "", ())),
    ],
)
def test_channels_are_told_apart(text, wanted):
    assert read(text) == wanted


def test_calls_in_thoughts_are_none():
    assert read("<|channel|>analysis<|message|>to=functions.add {}<|end|>") == ("to=functions.add {}", "", ())


@pytest.mark.parametrize("broken", ['{"a": ', "[2]", "add 2"])
def test_arguments_that_are_no_object_go_back_to_the_model(broken):
    (call,) = read(f"<|channel|>commentary to=functions.add json<|message|>{broken}<|call|>")[2]
    assert call.name == "add"
    assert call.problem


def test_a_call_cut_off_in_its_header_goes_back_to_the_model():
    (call,) = read("<|channel|>commentary to=functions.add <|constrain|>js")[2]
    assert call.name == "add"
    assert "no arguments" in call.problem


AFTER = "<|end|><|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"


@pytest.mark.parametrize(
    ("header", "content"),
    [
        ("??", "??"),
        ("commentary 2?", "commentary 2?"),
        ("commentary?commentary?", "commentary?commentary?"),
        ("commentary to=assistant<|channel|>commentary?", "commentary to=assistantcommentary?"),
    ],
)
def test_a_header_that_is_none_is_text(header, content):
    assert read(f"<|channel|>{header}{AFTER}") == ("Hm.", content, ())


def test_a_header_with_a_leftover_recipient_is_a_call_without_arguments():
    reasoning, _, (call,) = read(f"<|channel|>commentary? to=functions.web-browsing{AFTER}")
    assert reasoning == "Hm."
    assert (call.name, bool(call.problem)) == ("web-browsing", True)


def test_headers_are_put_as_templates_write_them():
    put = ' to=functions.add<|channel|>commentary json<|message|>{"a": 2}<|call|>'
    assert with_recipients_first(CALL) == put
    assert with_recipients_first(put) == put
    assert with_recipients_first("5") == "5"
