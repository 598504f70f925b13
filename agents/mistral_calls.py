"""Both of Mistral's formats: `[TOOL_CALLS]` before a list of objects, and before each `NAME[ARGS]{...}`."""

import json
import re
from typing import Any

from ..envs.tools.calls import ParsedAnswer, ToolCall
from ..envs.tools.json_calls import as_call, reason_of, unreadable
from .reasoning import TagThoughts

_TAG = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*(?P<name>[\w.:/-]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_LIST = re.compile(r"\s*(?=[\[{])")
_WANTED = '[TOOL_CALLS]TOOL[ARGS]{...} or [TOOL_CALLS][{"name": "TOOL", "arguments": {...}}]'
_DECODER = json.JSONDecoder()


class MistralCalls:
    """Reads the calls of all generations of Mistral's models; text behind a call is text."""

    closing = ""

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        first, *blocks = TagThoughts().split(text).content.split(_TAG)
        calls, content = list[ToolCall](), [first]
        for block in blocks:
            found, rest = _block(block)
            calls += found
            content.append(rest)
        return ParsedAnswer("".join(content).strip(), tuple(calls))


def _block(text: str) -> tuple[list[ToolCall], str]:
    """Return the calls that a block begins with, and the text behind them."""
    named = _NAMED.match(text)
    begin = named or _LIST.match(text)
    if begin is None:
        return [unreadable("neither a name nor a list follows", _WANTED)], text
    try:
        value, stop = _DECODER.raw_decode(text, begin.end())
    except (ValueError, RecursionError) as error:
        return [unreadable(reason_of(error), _WANTED)], ""
    if named:
        return [as_call({"name": named["name"], "arguments": value, "id": named["id"]}, _WANTED)], text[stop:]
    return _items(value), text[stop:]


def _items(value: Any) -> list[ToolCall]:  # Any: it is JSON
    items = value if isinstance(value, list) and value else [value]
    return [as_call(item, _WANTED) for item in items]
