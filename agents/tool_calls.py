"""Parsers of tool calls by name; each reads one model family's way of writing them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..envs.tools.calls import Schema, ToolCallParser
from ..errors import ConfigError
from ..registry import Registry
from .vllm_names import VLLM_TOOL_PARSERS, OfVllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOOL_PARSERS: Registry[type[ToolCallParser] | OfVllm] = Registry("tool-call parser")
# Under vLLM's names, ours: those that want token ids or more than a parser of calls there, and formats of which vLLM
# reads less (two objects in one block, text behind a call, both generations of a format).
_OURS = {
    "json": "turngym.envs.tools.json_calls:JsonCalls",
    "hermes": "turngym.envs.tools.json_calls:JsonCalls",
    "qwen3_json": "turngym.envs.tools.json_calls:JsonCalls",
    "openai": "turngym.agents.harmony:HarmonyCalls",
    "llama3_json": "turngym.agents.llama_calls:LlamaCalls",
    "llama4_json": "turngym.agents.llama_calls:LlamaCalls",
    "mistral": "turngym.agents.mistral_calls:MistralCalls",
    "cohere_command3": "turngym.agents.cohere_calls:CohereCalls",
    "cohere_command4": "turngym.agents.cohere_calls:CohereCalls",
}
for _name, _path in _OURS.items():
    TOOL_PARSERS.register_lazy(_name, _path)
for _name in VLLM_TOOL_PARSERS:
    TOOL_PARSERS.register(_name)(OfVllm(_name))

DEFAULT_PARSER = "json"


def tool_parser(
    name: str = DEFAULT_PARSER,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    tools: Sequence[Schema] = (),
) -> ToolCallParser:
    """Return a parser; those of vLLM are made for a tokenizer, and read arguments as the tools' schemas want them.

    Raises:
        UnknownNameError: There is none of this name; names the nearest.
        ConfigError: It is not made for this tokenizer.
        MissingPackageError: It is vLLM's, which is not installed.
    """
    entry = TOOL_PARSERS[name]
    if not isinstance(entry, OfVllm):
        return entry()
    if tokenizer is None:
        raise ConfigError(f"the tool-call parser {name!r} is vLLM's, and wants the model's tokenizer")
    from .vllm_parsers import VllmCalls

    return VllmCalls(entry.name, tokenizer, tools)
