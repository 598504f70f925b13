"""What a model's answer asks for: tool calls as data, and the seam where a parser takes them out of text."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
    """An answer taken apart: its text outside of calls and thoughts, and its calls in the order they were written."""

    content: str
    calls: tuple[ToolCall, ...]


class ToolCallParser(Protocol):
    """Reads one model family's way of writing calls."""

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart.

        It never raises, whatever the model wrote: a call that cannot be read is a `ToolCall` with a `problem`, which
        goes back to the model.

        Args:
            text: The answer with its special tokens, the end of the turn left out.
        """
        ...


def schema_name(schema: Schema) -> str:
    """Return the name of the function that a schema describes."""
    return str(schema["function"]["name"])
