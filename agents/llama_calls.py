"""The JSON format of Llama 3: objects `{"name": ..., "parameters": {...}}`, one or several, wherever they stand."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, call_tags
from ..envs.tools.json_calls import as_call, reason_of, unreadable

_TAG = "<|python_tag|>"
_BEGINS = re.compile(r'\s*(?:<\|python_tag\|>|\{\s*"(?:name|type|function)")')
_WANTED = '{"name": "TOOL", "parameters": {...}}'
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[\s;,]*")
_MOST_FAILURES = 64  # of texts that begin like JSON; each may be read to the end of the answer


class LlamaCalls:
    """Reads calls that follow one another with `;`, a comma or spaces between, and text around them."""

    closing = ""

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        calls, content = list[ToolCall](), list[str]()
        place = failures = 0
        while (start := text.find("{", place)) >= 0 and failures < _MOST_FAILURES:
            try:
                value, stop = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                failures += 1
                if not calls and _BEGINS.match(text) and text.find("{") == start:
                    calls.append(unreadable(reason_of(error), _WANTED))
                    place = len(text)
                    break
                value, stop = None, start + 1
            is_call = _looks_like_call(value)
            content.append(text[place : start if is_call else stop])
            if is_call:
                calls.append(_call(value))
                gap = _GAP.match(text, stop)
                stop = gap.end() if gap else stop
            place = stop
        content.append(text[place:])
        return ParsedAnswer.of("".join(content).replace(_TAG, ""), calls)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any]:
        """Return the form of an answer of calls alone; see `ForcesCalls`."""
        return call_tags(tools, '{"name": NAME, "parameters": ', "}", separator="; ", is_parallel=is_parallel)


def _looks_like_call(value: Any) -> bool:  # Any: it is JSON
    if not isinstance(value, dict):
        return False
    has_name = any(isinstance(value.get(key), str) for key in ("name", "function"))
    return has_name and ("parameters" in value or "arguments" in value)


def _call(value: Any) -> ToolCall:
    name = value["name"] if isinstance(value.get("name"), str) else value["function"]
    return as_call({**value, "name": name}, _WANTED)
