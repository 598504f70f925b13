"""What a model's answer asks for: tool calls as data, and the seam where a parser takes them out of text."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

Schema = dict[str, Any]  # an OpenAI function schema: {"type": "function", "function": {...}}; Any: it is JSON


@dataclass(frozen=True)
class ToolCall:
    """One call that a model wrote.

    Attributes:
        name: The tool's; empty where none could be read.
        arguments: As the model gave them; nobody has checked them yet.
        problem: Why the call cannot be made, for the model to read; None where it can.
        id: What the model called it; None where its format has no ids.
    """

    name: str
    arguments: Mapping[str, Any]
    problem: str | None = None
    id: str | None = None


class ParsedAnswer(NamedTuple):
    """An answer taken apart: its text outside of calls and thoughts, and its calls in the order they were written.

    Make it with `of`, which leaves the text of an answer without calls as it was sampled.
    """

    content: str
    calls: tuple[ToolCall, ...]

    @classmethod
    def of(cls, content: str, calls: Iterable[ToolCall]) -> "ParsedAnswer":
        """Return an answer whose text stays as it was written, but for the spaces between it and its calls."""
        calls = tuple(calls)
        return cls(content.strip() if calls else content, calls)


class ToolCallParser(Protocol):
    """Reads one model family's way of writing calls.

    It may have an attribute `closing`: the mark that closes a call or a block of them, empty where a call ends with its
    JSON. Without it nobody knows what stands behind the last call, and that stays as it was written.
    """

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart.

        It never raises, whatever the model wrote: a call that cannot be read is a `ToolCall` with a `problem`, which
        goes back to the model.

        Args:
            text: The answer with its special tokens, without its thought, the end of the turn left out.
        """
        ...


@runtime_checkable
class ForcesCalls(Protocol):
    """A parser whose format can be written as a grammar, so that an engine can be held to calls."""

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any] | None:
        """Return the form of an answer of calls alone, as one of xgrammar's formats; None where none is known.

        Args:
            tools: What may be called; at least one.
            is_parallel: Whether there may be several calls.
        """
        ...


@runtime_checkable
class FramesText(Protocol):
    """A parser, of calls or of thoughts, whose format has marks around text too."""

    def text_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the form of an answer of text alone, where `form` is the text's."""
        ...


def call_tags(tools: Sequence[Schema], begin: str, end: str, *, separator: str, is_parallel: bool) -> dict[str, Any]:
    """Return the form of calls whose arguments stand as JSON between two texts; NAME in the first is the tool's."""
    tags = [
        {
            "type": "tag",
            "begin": begin.replace("NAME", json.dumps(schema_name(tool), ensure_ascii=False)),
            "content": arguments_form(tool),
            "end": end,
        }
        for tool in tools
    ]
    form = {"type": "tags_with_separator", "tags": tags, "separator": separator, "at_least_one": True}
    return {**form, "stop_after_first": not is_parallel}


def arguments_form(tool: Schema) -> dict[str, Any]:
    """Return the form of a tool's arguments; each is a schema of its own, whose references begin at its own root."""
    return {"type": "json_schema", "json_schema": tool["function"].get("parameters") or {"type": "object"}}


def schema_name(schema: Schema) -> str:
    """Return the name of the function that a schema describes."""
    return str(schema["function"]["name"])
