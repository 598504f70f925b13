"""The parsers that are taken from vLLM, by its names, so that they can be listed and refused without importing it."""

from dataclasses import dataclass

_TAG = "<tool_call>"
_PYTHONIC = r"^\s*(?:<\|python_start\|>)?\[\s*[\w.]+\("
_QWEN = r"<tool_call>\s*(?:<function=)?|<function="
_DEEPSEEK = "<\uff5ctool▁call▁begin\uff5c>"

# Each with the pattern of what begins a call in its format: where more begin than were read, the model is told.
VLLM_TOOL_PARSERS: dict[str, str] = {
    "apertus": r"<\|tools_prefix\|>",
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "deepseek_v32": "<\uff5cDSML\uff5cinvoke name=",
    "deepseek_v4": "<\uff5cDSML\uff5cinvoke name=",
    "deepseek_v41": "<\uff5cDSML\uff5c invoke name=",
    "dots": "<dots_function_call>",
    "ernie45": _TAG,
    "functiongemma": "<start_function_call>",
    "gemma4": r"<\|tool_call>",
    "gigachat3": r"function call<\|role_sep\|>|<\|function_call\|>",
    "glm45": _TAG,
    "glm47": _TAG,
    "granite": r"<\|tool_call\|>|<tool_call>",
    "granite-20b-fc": "<function_call>",
    "granite4": _TAG,
    "hunyuan_a13b": "<tool_calls>",
    "hy_v3": "<tool_call[:>]",
    "hy_v4": "<tool_call[:>]",
    "inkling": r"<\|content_invoke_tool_",
    "internlm": r"<\|action_start\|>",
    "jamba": "<tool_calls>",
    "k2_horizon": r"<ifm\|tool_call>",
    "kimi_k2": r"<\|tool_call_begin\|>",
    "kimi_k3": r"<\|open\|>\s*call\b",
    "lfm2": r"<\|tool_call_start\|>",
    "ling3": _TAG,
    "llama4_pythonic": _PYTHONIC,
    "longcat": "<longcat_tool_call>",
    "mimo": _QWEN,
    "minicpm5": r"<function\s*name=",
    "minimax_m2": "<invoke name=",
    "minimax_m3": r"\]<\]minimax\[>\[<invoke name=",
    "muse_glimmer": r"<atem:invoke\b",
    "olmo3": "<function_calls>",
    "phi4_mini_json": r"functools\s*\[",
    "plamo3": r"<\|plamo:begin_tool_request:plamo\|>",
    "poolside_v1": _TAG,
    "pythonic": _PYTHONIC,
    "qwen3_coder": _QWEN,
    "qwen3_xml": _QWEN,
    "seed_oss": "<seed:tool_call>",
    "step3": "<\uff5ctool_call_begin\uff5c>",
    "step3p5": _QWEN,
    "xlam": r"\[TOOL_CALLS\]|<tool_call>|^\s*\[\s*\{",
}
_QWEN_END = "</function>|</tool_call>"
# What ends a call, in formats that do not tell by themselves whether the last one is whole.
CALL_ENDS: dict[str, str] = {
    "deepseek_v32": "</\uff5cDSML\uff5cinvoke>",
    "deepseek_v4": "</\uff5cDSML\uff5cinvoke>",
    "deepseek_v41": "</\uff5cDSML\uff5c invoke>",
    "gemma4": r"<tool_call\|>",
    "glm45": "</tool_call>",
    "glm47": "</tool_call>",
    "kimi_k2": r"<\|tool_call_end\|>",
    "mimo": _QWEN_END,
    "minimax_m2": "</invoke>",
    "minimax_m3": "</invoke>",
    "qwen3_coder": _QWEN_END,
    "qwen3_xml": _QWEN_END,
    "seed_oss": "</function>|</seed:tool_call>",
    "step3": "<\uff5ctool_call_end\uff5c>",
    "step3p5": _QWEN_END,
}
# What closes all calls of an answer, or each, where that is one mark.
CLOSINGS: dict[str, str] = {
    "deepseek_v3": "<\uff5ctool▁calls▁end\uff5c>",
    "deepseek_v31": "<\uff5ctool▁calls▁end\uff5c>",
    "deepseek_v32": "</\uff5cDSML\uff5cfunction_calls>",
    "gemma4": "<tool_call|>",
    "glm45": "</tool_call>",
    "glm47": "</tool_call>",
    "kimi_k2": "<|tool_calls_section_end|>",
    "minimax_m2": "</minimax:tool_call>",
    "mimo": "</tool_call>",
    "qwen3_coder": "</tool_call>",
    "qwen3_xml": "</tool_call>",
    "seed_oss": "</seed:tool_call>",
    "step3p5": "</tool_call>",
}
# Of those in CALL_ENDS, the ones that write numbers and texts differently; in others only the schema tells them apart.
TYPED_ARGUMENTS = frozenset({"deepseek_v32", "deepseek_v4", "deepseek_v41", "gemma4", "kimi_k2"})

VLLM_REASONING_PARSERS: tuple[str, ...] = (
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "deepseek_v41",
    "ernie45",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite_thinking_parser",
    "holo2",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "inkling",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "ling3",
    "mimo",
    "minicpmv",
    "minimax_m2",
    "minimax_m2_append_think",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "nemotron_v3",
    "olmo3",
    "plamo3",
    "poolside_v1",
    "qwen3",
    "seed_oss",
    "step3",
    "step3p5",
)
# vLLM lists `hf` too, which wants a `response_template` beside the tokenizer; others that it lists are ours, see
# `agents.tool_calls` and `agents.reasoning`.


@dataclass(frozen=True)
class OfVllm:
    """Stands in a registry for a parser that vLLM has under this name."""

    name: str
