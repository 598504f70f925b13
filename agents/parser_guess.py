"""Which parsers a chat template suggests, by the marks that it writes around calls and thoughts."""

from typing import NamedTuple

from .reasoning import DEFAULT_REASONING
from .tool_calls import DEFAULT_PARSER


class Guess(NamedTuple):
    """A parser, and the mark in the template that speaks for it; empty where none does."""

    name: str
    mark: str


# The first whose marks all stand in the template; what is more particular stands before what is less.
_TOOLS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai", ("<|channel|>", "<|message|>", "functions.")),
    ("muse_glimmer", ("<atem:",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("minimax_m3", ("]<]minimax[>[",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("minicpm5", ('<function name="',)),
    ("qwen3_coder", ("<function=",)),
    ("hy_v3", ("<arg_key:",)),
    ("k2_horizon", ("<ifm|tool_call>",)),
    ("glm45", ("<arg_key>",)),
    ("deepseek_v3", ("<\uff5ctool▁call▁begin\uff5c>", "```json")),
    ("deepseek_v31", ("<\uff5ctool▁call▁begin\uff5c>",)),
    ("deepseek_v41", ("\uff5cDSML\uff5c invoke",)),
    ("deepseek_v32", ("\uff5cDSML\uff5c", "function_calls")),
    ("deepseek_v4", ("\uff5cDSML\uff5c",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("cohere_command3", ("<|START_ACTION|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("llama4_pythonic", ("<|python_start|>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('{"name": function name, "parameters": dictionary',)),
    ("internlm", ("<|action_start|>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("dots", ("<dots_function_call>",)),
    ("plamo3", ("<|plamo:begin_tool_request",)),
    ("inkling", ("<|content_invoke_tool_json|>",)),
    ("step3", ("<\uff5ctool_call_begin\uff5c>",)),
    ("olmo3", ("<function_calls>",)),
    ("granite", ("<|tool_call|>",)),
    ("phi4_mini_json", ("functools[",)),
    ("json", ("<tool_call>",)),
    ("jamba", ("<tool_calls>",)),
)
_REASONING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("openai_gptoss", ("<|channel|>", "<|message|>", "analysis")),
    ("muse_glimmer", ("<atem:", "to=self")),
)


def guess_tool_parser(template: str) -> Guess:
    """Return the parser of calls that a chat template suggests; the default where it has no marks that are known."""
    return _guess(template, _TOOLS, DEFAULT_PARSER)


def guess_reasoning_parser(template: str) -> Guess:
    """Return the parser of thoughts that a chat template suggests."""
    return _guess(template, _REASONING, DEFAULT_REASONING)


def _guess(template: str, table: tuple[tuple[str, tuple[str, ...]], ...], default: str) -> Guess:
    for name, marks in table:
        if all(mark in template for mark in marks):
            return Guess(name, marks[0])
    return Guess(default, "")
