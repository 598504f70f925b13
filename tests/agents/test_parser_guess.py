"""Which parser each public template suggests, and what is said of it."""

import json
import logging
from importlib.resources import files

import pytest

from turngym.agents import ChatAgent
from turngym.agents.answer_reader import AnswerReaders
from turngym.agents.parser_guess import _REASONING, _TOOLS, guess_reasoning_parser, guess_tool_parser
from turngym.agents.reasoning import REASONING_PARSERS
from turngym.agents.tool_calls import TOOL_PARSERS
from turngym.errors import UnknownNameError

# By the beginning of the template's name; of those that tell of tools.
EXPECTED = {
    "deepseek": "deepseek_v3",
    "diffusion_gemma": "gemma4",
    "gemma4": "gemma4",
    "glm4moe": "glm45",
    "gptoss": "openai",
    "lfm2": "lfm2",
    "llama3_1": "llama3_json",
    "llama3_2": "llama3_json",
    "muse_glimmer": "muse_glimmer",
    "nemotron_3": "qwen3_coder",
    "qwen2_5": "json",
    "qwen3_5": "qwen3_coder",
    "qwen3_6": "qwen3_coder",
    "qwen3_8": "qwen3_coder",
    "qwen3": "json",
}
TEMPLATES = {
    path.name.removesuffix(".jinja"): path.read_text(encoding="utf-8")
    for path in files("trl").joinpath("chat_templates").iterdir()
    if path.name.endswith(".jinja")
}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_public_templates(name):
    key = max((key for key in EXPECTED if name.startswith(key)), key=len, default=None)
    assert guess_tool_parser(TEMPLATES[name]).name == EXPECTED.get(key, "json")
    thoughts = {"gptoss": "openai_gptoss", "muse_glimmer": "muse_glimmer"}.get(name.removesuffix("_training"), "tags")
    assert guess_reasoning_parser(TEMPLATES[name]).name == thoughts


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[TOOL_CALLS]", "mistral"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<minimax:tool_call> <invoke name=", "minimax_m2"),
        ("<seed:tool_call> <function=", "seed_oss"),
        ("<\uff5cDSML\uff5cfunction_calls>", "deepseek_v32"),
        ("<\uff5cDSML\uff5ctool_calls>", "deepseek_v4"),
        ("<\uff5ctool▁call▁begin\uff5c>", "deepseek_v31"),
        ("<|START_ACTION|>", "cohere_command3"),
        ("", "json"),
    ],
)
def test_marks(text, wanted):
    assert guess_tool_parser(text).name == wanted


def test_guesses_are_parsers():
    assert {name for name, _ in _TOOLS} <= {*TOOL_PARSERS}
    assert {name for name, _ in _REASONING} <= {*REASONING_PARSERS}


def test_the_choice_is_said(tokenizer_of, caplog):
    tokenizer = tokenizer_of(TEMPLATES["llama3_1"])
    with caplog.at_level(logging.INFO, "turngym"):
        agent = ChatAgent(tokenizer)
        assert agent.begin(TOOLS) is not agent.begin(TOOLS)
    said = (
        "tool calls are read by the parser 'llama3_json', since the chat template holds '<|python_tag|>'; "
        "--rollout.tool_parser sets it"
    )
    assert [record.message for record in caplog.records] == [said]
    assert agent.readers.choice == said
    assert AnswerReaders(tokenizer, "json").choice == (
        "tool calls are read by the parser 'json', since --rollout.tool_parser says so"
    )
    assert "has no marks" in AnswerReaders(tokenizer_of(None)).choice


@pytest.mark.parametrize(("given", "nearest"), [("tool_parser", "hermes"), ("reasoning_parser", "qwen3")])
def test_unknown_names_are_refused_with_the_nearest(tokenizer_of, given, nearest):
    with pytest.raises(UnknownNameError, match=f"Did you mean '{nearest}'"):
        ChatAgent(tokenizer_of(TEMPLATES["qwen3"]), **{given: nearest + "s"})


def test_a_model_that_is_told_of_the_default_form_is_read_in_it(tokenizer_of):
    call = json.dumps({"name": "add", "arguments": {}})
    for name in ("deepseekv3", "qwen3"):  # the first tells of no tools, so that a message does
        reader = ChatAgent(tokenizer_of(TEMPLATES[name])).reader(TOOLS)
        answer = reader.read(f"Hm.</think>Hi <tool_call>{call}</tool_call>")
        assert (answer.reasoning, answer.content, [call.name for call in answer.calls]) == ("Hm.", "Hi", ["add"])


def test_without_tools_only_thoughts_are_read(tokenizer_of):
    answer = ChatAgent(tokenizer_of(TEMPLATES["qwen3_5_think"])).reader().read("Hm.</think><tool_call>{}</tool_call>")
    assert answer == ("Hm.", "<tool_call>{}</tool_call>", ())
    cut = ChatAgent(tokenizer_of(TEMPLATES["qwen3_5_think"])).reader().read("Hm.")  # the prompt opened the thought
    assert cut == ("Hm.", "", ())
