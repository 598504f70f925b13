"""Thoughts apart from answers."""

import pytest

from turngym.agents.reasoning import REASONING_PARSERS, TagThoughts, reasoning_parser
from turngym.errors import ConfigError, UnknownNameError

CALLS = [
    """<tool_call>\n{"name": "write", "arguments": {"text": "s.split('</think>')[1]"}}\n</tool_call>""",
    '{"name": "write", "parameters": {"text": "</think>"}}',
    'I write.\n{"name": "write", "parameters": {"text": "</think>"}}',
    '[{"name": "write", "arguments": {"text": "</think>"}}]',
    '[TOOL_CALLS]write[ARGS]{"text": "[/THINK]"}',
    '<|START_ACTION|>[{"tool_name": "write", "parameters": {"text": "<|END_THINKING|>"}}]<|END_ACTION|>',
    "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value></think></arg_value>\n</tool_call>",
    "I write.\n<function=write>\n<parameter=text>\n</think>\n</parameter>\n</function>",
    "<seed:tool_call><function=write><parameter=text></seed:think></parameter></function></seed:tool_call>",
]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("5", (None, "5")),
        ("<think>\nHm.\n</think>\n\n5", ("Hm.", "5")),
        ("Hm.</think>5", ("Hm.", "5")),  # the prompt opened the thought
        ("<think>\n\n</think>\n\n5", (None, "5")),  # the prompt keeps the model from thinking
        ("<think>Hm.", ("Hm.", "")),  # cut
        ("<think>a</think>b<think>c</think>d", ("a", "b<think>c</think>d")),
        ("<seed:think>Hm.</seed:think>5", ("Hm.", "5")),
        ("[THINK]Hm.[/THINK]5", ("Hm.", "5")),
        ("<|channel>thought\nHm.\n<channel|>5", ("Hm.", "5")),
        ("<|START_THINKING|>Hm.<|END_THINKING|>5", ("Hm.", "5")),
        ("<think>What is [/THINK]?</think>5", ("What is [/THINK]?", "5")),
        (" \n<think>Hm.</think>5", ("Hm.", "5")),
        ("", (None, "")),
        # Marks that the answer itself holds are text.
        ("Models wrap thoughts in <think> tags.", (None, "Models wrap thoughts in <think> tags.")),
        ("Between <think> and </think>, as R1.", (None, "Between <think> and </think>, as R1.")),
        ("<think>\nplan\n</think>\n\nUse split('</think>') here.", ("plan", "Use split('</think>') here.")),
        ("Hm.</think>Use split('</think>') here.", ("Hm.", "Use split('</think>') here.")),
        *((call, (None, call)) for call in CALLS),
        *((f"Hm.</think>{call}", ("Hm.", call)) for call in CALLS),
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
