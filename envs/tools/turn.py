"""One answer's tool calls: run at once, each under its deadline, and what the model is shown of them."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ToolError
from ..messages import Message
from .calls import ToolCall
from .toolbox import Content, Toolbox, ToolRules


@dataclass(frozen=True)
class Shown:
    """What came of one call."""

    call: ToolCall
    content: Content
    is_error: bool


async def run_calls(toolbox: Toolbox, calls: Sequence[ToolCall], rules: ToolRules) -> list[Shown]:
    """Run calls at once and return what came of each, in their order; of those beyond `max_calls`, one says so.

    Raises:
        TurnGymError: What the tools need failed, by no doing of the model.
    """
    tasks = [asyncio.ensure_future(_run(toolbox, call, rules)) for call in calls[: rules.max_calls]]
    try:
        await asyncio.wait(tasks)  # every call has its deadline
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    shown = [task.result() for task in tasks]
    if num_more := len(calls) - len(shown):
        told = f"Not run, and {num_more - 1} more: at most {rules.max_calls} calls of one answer are."
        shown.append(Shown(calls[rules.max_calls], told, True))
    return shown


async def _run(toolbox: Toolbox, call: ToolCall, rules: ToolRules) -> Shown:
    if call.problem is not None:
        return Shown(call, call.problem, True)
    try:
        _check_sendable(call)
        content = await toolbox.call(call.name, call.arguments, rules.call_timeout_s)
    except ToolError as error:
        return Shown(call, capped(f"Error: {error}", rules.max_output_chars), True)
    return Shown(call, _capped_parts(content, rules.max_output_chars), False)


def _check_sendable(call: ToolCall) -> None:
    try:
        json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # NaN, half of a surrogate pair: Python reads them, JSON has neither
        raise ToolError(f"{call.name} was not called: its arguments are no JSON ({error})") from error


def as_messages_of(shown: Sequence[Shown], first_id: int) -> list[Message]:
    """Return what the model is shown, a message for each call; those without an id are counted from `first_id` on."""
    return [
        Message(
            role="tool",
            name=each.call.name or "unknown",
            tool_call_id=each.call.id or f"call_{first_id + index}",
            content=each.content,
        )
        for index, each in enumerate(shown)
    ]


def capped(text: str, max_chars: int) -> str:
    """Return the text; of a long one the beginning and the end, and how much was left out."""
    text = text.encode(errors="replace").decode()  # what no UTF-8 can say, no tokenizer can read
    if len(text) <= max_chars:
        return text
    head, tail = (max_chars + 1) // 2, max_chars // 2
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[{left_out} of {len(text)} characters left out]\n{text[len(text) - tail :]}"


def _capped_parts(content: Content, max_chars: int) -> Content:
    if isinstance(content, str):
        return capped(content, max_chars)
    return [{**part, "text": capped(part["text"], max_chars)} if "text" in part else part for part in content]
