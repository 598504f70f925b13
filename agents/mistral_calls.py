"""Both of Mistral's formats: `[TOOL_CALLS]` before a list of objects, and before each `NAME[ARGS]{...}`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, arguments_form, call_tags, schema_name
from ..envs.tools.json_calls import as_call, reason_of, unreadable

_TAG, _ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAME = re.compile(r"[\w.:/-]+")
_NAMED = re.compile(r"\s*(?P<name>[\w.:/-]+)\s*(?:\[CALL_ID\]\s*(?P<id>\w+)\s*)?(?:\[ARGS\])?\s*(?=\{)")
_LIST = re.compile(r"\s*(?=[\[{])")
_WANTED = '[TOOL_CALLS]TOOL[ARGS]{...} or [TOOL_CALLS][{"name": "TOOL", "arguments": {...}}]'
_DECODER = json.JSONDecoder()


class MistralCalls:
    """Reads the calls of all generations of Mistral's models; text behind a call is text."""

    closing = ""

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        first, *blocks = text.split(_TAG)
        calls, content = list[ToolCall](), [first]
        for block in blocks:
            found, rest = _block(block)
            calls += found
            content.append(rest)
        return ParsedAnswer.of("".join(content), calls)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any]:
        """Return the form of an answer of calls alone, in any generation's way; see `ForcesCalls`."""
        begin, end = '{"name": NAME, "arguments": ', "}"
        objects = call_tags(tools, begin, end, separator=", ", is_parallel=is_parallel)
        listed = {"type": "tag", "begin": f"{_TAG}[", "content": objects, "end": "]"}
        named = [tag for tool in tools if _NAME.fullmatch(schema_name(tool)) for tag in _named_tags(tool)]
        if not named:
            return listed
        several = {"type": "tags_with_separator", "tags": named, "separator": "", "at_least_one": True}
        return {"type": "or", "elements": [{**several, "stop_after_first": not is_parallel}, listed]}


def _named_tags(tool: Schema) -> list[dict[str, Any]]:
    """Return the forms of a call by name, without an id and with one."""
    begin, arguments = f"{_TAG}{schema_name(tool)}", arguments_form(tool)
    with_id = [{"type": "regex", "pattern": "[a-zA-Z0-9]{9}"}, {"type": "const_string", "value": _ARGS}, arguments]
    return [
        {"type": "tag", "begin": f"{begin}{_ARGS}", "content": arguments, "end": ""},
        {"type": "tag", "begin": f"{begin}[CALL_ID]", "content": {"type": "sequence", "elements": with_id}, "end": ""},
    ]


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
