"""Requests to `/v1/responses`: items and tools, and the messages and schemas that they say."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..base import MOST_TOP_LOGPROBS
from ..shape import Grammar
from .api_errors import ApiError
from .fields import OF_RESPONSES
from .replies import Json
from .shaping import CallChoice, ResponseFormat
from .wire import Count, Generation, Part, Text, ToolFunction, WireModel, schema_of

_log = logging.getLogger(__name__)
_NEEDS = {
    "message": ["role", "content"],
    "function_call": ["call_id", "name", "arguments"],
    "function_call_output": ["call_id", "output"],
    "custom_tool_call": ["call_id", "name", "input"],
    "custom_tool_call_output": ["call_id", "output"],
    "reasoning": [],
}


class Item(WireModel):
    """One item of an input: a message, a call, what came of one, a thought."""

    type: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None

    @model_validator(mode="after")
    def _be_whole(self) -> "Item":
        kind = self.kind
        if kind not in _NEEDS:
            raise ValueError(f"items of type {kind!r} are not known here; wanted {', '.join(_NEEDS)}")
        missing = [name for name in _NEEDS[kind] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"an item of type {kind!r} needs {', '.join(missing)}")
        return self

    @property
    def kind(self) -> str:
        """Its type; one with a role alone is a message."""
        return self.type or "message"


class ResponseTool(WireModel):
    """A tool: a function, one that takes free text, or a namespace of functions; others are left out."""

    type: Text
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: "list[ResponseTool] | None" = None

    @model_validator(mode="after")
    def _be_named(self) -> "ResponseTool":
        if self.type in ("function", "custom", "namespace") and not self.name:
            raise ValueError(f"a tool of type {self.type!r} needs a name")
        return self


@dataclass(frozen=True)
class NamedTool:
    """A tool that the model is told of: as the client names it, and whether it takes free text."""

    name: str
    namespace: str | None
    is_custom: bool
    schema: Json


class TextConfig(WireModel):
    """The form of text."""

    format: ResponseFormat | None = None


class ResponsesRequest(Generation):
    """`POST /v1/responses`."""

    refusals = OF_RESPONSES

    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    text: TextConfig | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None

    def check(self) -> None:
        """Refuse what nothing here does."""
        super().check()
        if isinstance(self.tool_choice, dict) and self.call_choice().only not in self.named_tools():
            raise ApiError(f"tool_choice {self.tool_choice!r:.100} names none of the tools", param="tool_choice")

    def call_choice(self) -> CallChoice:
        """Return what it says of calls; a tool is named as the client names it, and is called as the model does."""
        choice = CallChoice.of(self.tool_choice)
        names = [name for name, tool in self.named_tools().items() if choice.only in (name, tool.name)]
        return replace(choice, only=names[0]) if names else choice

    def formats(self) -> list[Grammar | None]:
        """Return all that it says of the form of an answer."""
        told = self.text.format if self.text else None
        return super().formats() if told is None else [*super().formats(), told.grammar()]

    def format_given(self) -> Json:
        """Return the form of text as the client gave it."""
        told = self.text.format if self.text else None
        return {"type": "text"} if told is None else told.model_dump(by_alias=True, exclude_none=True)

    @property
    def gives_logprobs(self) -> bool:
        """Whether the client wants the logprobs of what was sampled."""
        return bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())

    def items(self) -> list[Json]:
        """Return the input as items; text is one message of the user."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return [item.model_dump(exclude_none=True) for item in self.input]

    def named_tools(self) -> dict[str, NamedTool]:
        """Return the tools by the names that the model calls them."""
        found: dict[str, NamedTool] = {}
        for tool in self.tools or []:
            for named in _named(tool):
                found[called(named.namespace, named.name)] = named
        return found

    def chat(self) -> list[Json]:
        """Return what the input says, in the form of chat completions."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        return _messages(self.input)


def called(namespace: str | None, name: str) -> str:
    """Return what the model calls a tool."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def check_outputs(messages: Sequence[Json]) -> None:
    """Refuse a history in which a call has no output.

    Raises:
        ApiError: There is one; names it.
    """
    answered = {message.get("tool_call_id") for message in messages if message["role"] == "tool"}
    made = {call.get("id") for message in messages for call in message.get("tool_calls") or []}
    for what, ids in (("no output for the call", made - answered), ("no call for the output", answered - made)):
        if ids:
            raise ApiError(f"there is {what} {min(map(str, ids))!r}", param="input", code="call_without_output")


def _named(tool: ResponseTool, namespace: str | None = None) -> Iterator[NamedTool]:
    if tool.type == "namespace":
        for each in tool.tools or []:
            yield from _named(each, tool.name)
    elif tool.type in ("function", "custom"):
        is_custom = tool.type == "custom"
        text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
        name = tool.name or ""
        function = ToolFunction(
            name=called(namespace, name),
            description=tool.description,
            parameters=text if is_custom else tool.parameters,
        )
        yield NamedTool(name, namespace, is_custom, schema_of(function))
    else:
        _log.info("a tool of type %r is left out: this server runs none itself", tool.type)


def _messages(items: Sequence[Item]) -> list[Json]:
    """Put items together that are one answer: its thought, its text, and the calls behind it."""
    messages: list[Json] = []
    thought: str | None = None
    for item in items:
        if item.kind == "reasoning":
            thought = "\n".join(part.text or "" for part in item.content) if isinstance(item.content, list) else None
        elif item.kind == "message":
            content = item.content if isinstance(item.content, str) else _parts(item.content)
            messages.append({"role": item.role, "content": content})
        elif item.kind.endswith("_output"):
            content = item.output if isinstance(item.output, str) else _parts(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_call(item))
        if thought and item.kind != "reasoning" and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"], thought = thought, None
    return messages


def _call(item: Item) -> Json:
    arguments = item.arguments if item.kind == "function_call" else {"input": item.input}
    return {"id": item.call_id, "function": {"name": called(item.namespace, item.name or ""), "arguments": arguments}}


def _parts(parts: Sequence[Part] | None) -> list[Json]:
    return [part.model_dump(exclude_none=True) for part in parts or []]
