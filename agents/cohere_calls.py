"""Cohere's format: a list of calls as JSON between `<|START_ACTION|>` and `<|END_ACTION|>`."""

import json
import re
from typing import Any

from ..envs.tools.calls import ParsedAnswer, ToolCall
from ..envs.tools.json_calls import as_call, reason_of, unreadable
from .reasoning import TagThoughts

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
_AROUND_TEXT = re.compile(r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>")
_WANTED = '[{"tool_call_id": "0", "tool_name": "TOOL", "parameters": {...}}]'


class CohereCalls:
    """Reads the calls of Command R7B, Command A and later."""

    closing = _CLOSE

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        first, *blocks = TagThoughts().split(text).content.split(_OPEN)
        content, calls = [first], list[ToolCall]()
        for block in blocks:
            written, _, rest = block.partition(_CLOSE)
            calls += _calls(written)
            content.append(rest)
        return ParsedAnswer(_AROUND_TEXT.sub("", "".join(content)).strip(), tuple(calls))


def _calls(written: str) -> list[ToolCall]:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError) as error:
        return [unreadable(reason_of(error), _WANTED)]
    return [_call(item) for item in (value if isinstance(value, list) else [value])]


def _call(item: Any) -> ToolCall:  # Any: it is JSON
    names = {"tool_name": "name", "parameters": "arguments", "tool_call_id": "id"}
    is_object = isinstance(item, dict)
    return as_call({names.get(key, key): value for key, value in item.items()} if is_object else item, _WANTED)
