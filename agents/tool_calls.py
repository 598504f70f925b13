"""Parsers of tool calls by name; each reads one model family's way of writing them."""

from ..envs.tools.calls import ToolCallParser
from ..registry import Registry

TOOL_PARSERS: Registry[type[ToolCallParser]] = Registry("tool-call parser")
TOOL_PARSERS.register_lazy("json", "turngym.envs.tools.json_calls:JsonCalls")

DEFAULT_PARSER = "json"


def tool_parser(name: str = DEFAULT_PARSER) -> ToolCallParser:
    """Return a parser.

    Raises:
        UnknownNameError: There is none of this name; names the nearest.
    """
    return TOOL_PARSERS[name]()
