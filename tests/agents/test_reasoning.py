"""Thoughts apart from answers."""

import pytest

from turngym.agents.reasoning import REASONING_PARSERS, TagThoughts, reasoning_parser
from turngym.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5", (None, "5")),
        ("<think>\nHm.\n</think>\n\n5", ("Hm.", "5")),
        ("Hm.</think>5", ("Hm.", "5")),  # the prompt opened the thought
        ("<think>\n\n</think>\n\n5", (None, "5")),  # the prompt keeps the model from thinking
        ("<think>Hm.", ("Hm.", "")),  # cut
        ("<think>a</think>b<think>c</think>d", ("a</think>b<think>c", "d")),
        ("<seed:think>Hm.</seed:think>5", ("Hm.", "5")),
        ("[THINK]Hm.[/THINK]5", ("Hm.", "5")),
        ("<|channel>thought\nHm.\n<channel|>5", ("Hm.", "5")),
        ("<|START_THINKING|>Hm.<|END_THINKING|>5", ("Hm.", "5")),
        ("<think>What is [/THINK]?</think>5", ("What is [/THINK]?", "5")),
        ("", (None, "")),
    ],
)
def test_tags(text, wanted):
    assert TagThoughts().split(text) == wanted


def test_names():
    assert reasoning_parser().split("a</think>b") == ("a", "b")
    assert reasoning_parser("openai_gptoss").split("<|channel|>analysis<|message|>a<|end|>") == ("a", "")
    with pytest.raises(UnknownNameError, match="Did you mean 'deepseek_r1'"):
        reasoning_parser("deepseek-r1")
    with pytest.raises(ConfigError, match="wants the model's tokenizer"):
        reasoning_parser("qwen3")
    assert "qwen3" in REASONING_PARSERS
