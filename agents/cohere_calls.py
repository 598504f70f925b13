"""Cohere's format: a list of calls as JSON between `<|START_ACTION|>` and `<|END_ACTION|>`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, arguments_form, schema_name
from ..envs.tools.json_calls import as_call, reason_of, unreadable

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"
_AROUND_TEXT = re.compile(r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>")
_WANTED = '[{"tool_call_id": "0", "tool_name": "TOOL", "parameters": {...}}]'


class CohereCalls:
    """Reads the calls of Command R7B, Command A and later."""

    closing = _CLOSE

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        first, *blocks = text.split(_OPEN)
        content, calls = [first], list[ToolCall]()
        for block in blocks:
            written, _, rest = block.partition(_CLOSE)
            calls += _calls(written)
            content.append(rest)
        return ParsedAnswer.of(_AROUND_TEXT.sub("", "".join(content)), calls)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any]:
        """Return the form of an answer of calls alone; see `ForcesCalls`."""
        several = {"type": "tags_with_separator", "tags": [_tag(tool) for tool in tools], "separator": ",\n    "}
        calls = {**several, "at_least_one": True, "stop_after_first": not is_parallel}
        return {"type": "tag", "begin": f"{_OPEN}[\n    ", "content": calls, "end": f"\n]{_CLOSE}"}

    def text_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the form of an answer of text alone; see `FramesText`."""
        around = ("RESPONSE", "TEXT")
        marked = [{"type": "tag", "begin": f"<|START_{n}|>", "content": form, "end": f"<|END_{n}|>"} for n in around]
        return {"type": "or", "elements": [*marked, form]}


def _tag(tool: Schema) -> dict[str, Any]:
    name = json.dumps(schema_name(tool), ensure_ascii=False)
    parts = [
        {"type": "regex", "pattern": "[0-9]{1,3}"},
        {"type": "const_string", "value": f'", "tool_name": {name}, "parameters": '},
        arguments_form(tool),
    ]
    content = {"type": "sequence", "elements": parts}
    return {"type": "tag", "begin": '{"tool_call_id": "', "content": content, "end": "}"}


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
