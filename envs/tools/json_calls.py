"""The default parser: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, or an answer that is such JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import ParsedAnswer, Schema, ToolCall, call_tags

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THOUGHT, _END_OF_THOUGHT = "<think>", "</think>"
MOST_DEPTH = 64
"""How many levels of objects and lists a call's arguments may have: with hundreds, nothing can write them again."""
_WANTED = '{"name": "TOOL", "arguments": {...}}'
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[\s,;]*")


class JsonCalls:
    """Reads the format of Hermes and Qwen, and plain JSON.

    A block may hold several objects, and one that was cut off behind its last brace counts. Braces and tags inside of
    strings are text.
    """

    closing = CLOSE

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        if OPEN not in text:
            plain = _plain_calls(text)
            return ParsedAnswer("" if plain else text, plain)
        content: list[str] = []
        found: list[ToolCall] = []
        place = 0
        while (start := text.find(OPEN, place)) >= 0:
            content.append(text[place:start])
            calls, place = _block(text, start + len(OPEN))
            found += calls
        content.append(text[place:])
        return ParsedAnswer.of("".join(content), found)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any]:
        """Return the form of an answer of calls alone; see `ForcesCalls`."""
        begin, end = f'{OPEN}\n{{"name": NAME, "arguments": ', f"}}\n{CLOSE}"
        return call_tags(tools, begin, end, separator="\n", is_parallel=is_parallel)


JSON_CALLS = JsonCalls()


def behind_thought(text: str) -> str:
    """Return an answer without the thought that it begins with; all of it is one that never ends.

    A closing mark alone ends a thought that the prompt opened, unless a call stands before it.
    """
    before, _, rest = text.partition(_END_OF_THOUGHT)
    if text.lstrip().startswith(_THOUGHT):
        return rest
    has_other = any(mark in before for mark in (_THOUGHT, OPEN)) or before.lstrip().startswith(("{", "["))
    return text if has_other or before == text else rest


def _block(text: str, start: int) -> tuple[list[ToolCall], int]:
    """Return the calls of a block that begins at `start`, and where the text goes on behind it."""
    calls: list[ToolCall] = []
    place = start
    while True:
        place = _end_of_gap(text, place)
        if text.startswith(CLOSE, place):
            return calls or [unreadable("the block is empty")], place + len(CLOSE)
        if place == len(text) or text.startswith(OPEN, place):
            return calls or [unreadable("the block is empty")], place
        try:
            value, place = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            end = text.find(CLOSE, place)
            calls.append(unreadable(reason_of(error)))
            return calls, len(text) if end < 0 else end + len(CLOSE)
        calls += [as_call(item) for item in (value if isinstance(value, list) and value else [value])]


def _end_of_gap(text: str, start: int) -> int:
    gap = _GAP.match(text, start)
    return gap.end() if gap else start


def _plain_calls(said: str) -> tuple[ToolCall, ...]:
    """Return the calls of an answer that is nothing but JSON in the form of calls; none where it is anything else."""
    if not said.strip().startswith(("{", "[")):
        return ()
    try:
        value = json.loads(said)
    except (ValueError, RecursionError):
        return ()
    items = value if isinstance(value, list) else [value]
    return tuple(as_call(item) for item in items) if items and all(map(_looks_like_call, items)) else ()


def _looks_like_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and ("arguments" in value or "parameters" in value)
    )


def as_call(value: Any, wanted: str = _WANTED) -> ToolCall:
    """Return the call that an object with a name and arguments is; the latter may be JSON as text.

    Args:
        value: What the model wrote.
        wanted: The form that it is told if this is none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return unreadable("it has no name", wanted)
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return ToolCall(value["name"], {}, f"The arguments are no JSON: {reason_of(error)}.")
    call_id = value.get("id")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return ToolCall(value["name"], {}, f"The arguments want to be an object, got {type(arguments).__name__}.")
    if not is_shallow(arguments):
        told = f"The arguments are nested too deeply: {MOST_DEPTH} levels of objects and lists are the most."
        return ToolCall(value["name"], {}, told)
    return ToolCall(value["name"], arguments, id=call_id if isinstance(call_id, str) else None)


def is_shallow(value: Any, most_levels: int = MOST_DEPTH) -> bool:
    """Say whether JSON has no more levels of objects and lists than these."""
    if not isinstance(value, Mapping | list):
        return True
    inside = value.values() if isinstance(value, Mapping) else value
    return most_levels > 0 and all(is_shallow(each, most_levels - 1) for each in inside)


def unreadable(reason: str, wanted: str = _WANTED) -> ToolCall:
    """Return what the model is told of a call that cannot be read."""
    return ToolCall("", {}, f"Nothing was run: a tool call wants the form {wanted}, as JSON ({reason}).")


def reason_of(error: Exception) -> str:
    """Return why a text is no JSON."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
