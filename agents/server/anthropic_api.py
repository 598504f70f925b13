"""`POST /v1/messages`: Anthropic's requests, as the same turns that OpenAI's are."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ..chat import ChatAgent
from ..shape import Grammar
from .anthropic_replies import AnthropicReply
from .api_errors import ApiError
from .canonical import chat_messages
from .endpoints import Outcome, asked_of, chat_ask, sampling_of
from .fields import OF_ANTHROPIC
from .reading import read_with_history
from .replies import Json
from .session import Session
from .shaping import CallChoice, ResponseFormat
from .wire import Count, Generation, Text, ToolFunction, WireModel, read, schema_of

_HIDDEN = ("thinking", "redacted_thinking")  # no part of a content


class Block(WireModel):
    """A part of a message."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    is_error: bool | None = None

    @model_validator(mode="after")
    def _be_whole(self) -> "Block":
        wanted = {"text": ["text"], "tool_use": ["id", "name"], "tool_result": ["tool_use_id"]}.get(self.type, [])
        missing = [name for name in wanted if getattr(self, name) is None]
        if missing:
            raise ValueError(f"a block of type {self.type!r} needs {', '.join(missing)}")
        return self


class AnthropicMessage(WireModel):
    """A message of a history."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(WireModel):
    """A tool; those that Anthropic's servers run are refused."""

    type: Literal["custom"] | None = None
    name: Text
    description: str | None = None
    input_schema: dict[str, Any] | None = None

    def to_schema(self) -> Json:
        """Return the schema that templates read."""
        return schema_of(ToolFunction(name=self.name, description=self.description, parameters=self.input_schema))


class ToolChoice(WireModel):
    """Which tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class CountRequest(WireModel):
    """`POST /v1/messages/count_tokens`."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[AnthropicTool] | None = None

    def chat(self) -> list[Json]:
        """Return the messages in OpenAI's form."""
        return [*self.system_message(), *(each for message in self.in_openai_form() for each in message)]

    def system_message(self) -> list[Json]:
        """Return the system's message in that form, if there is one."""
        return [] if self.system is None else [{"role": "system", "content": _content(self.system)}]

    def in_openai_form(self) -> list[list[Json]]:
        """Return what stands for each message, without the system's."""
        return [list(_in_openai_form(message)) for message in self.messages]

    def schemas(self) -> list[Json] | None:
        """Return the schemas of all tools."""
        return [tool.to_schema() for tool in self.tools] if self.tools else None


class OutputConfig(WireModel):
    """The form of an answer's text."""

    format: ResponseFormat | None = None


class MessagesRequest(CountRequest, Generation):
    """`POST /v1/messages`."""

    refusals = OF_ANTHROPIC

    max_tokens: Count
    stop_sequences: Annotated[list[Text], Field(max_length=64)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    def check(self) -> None:
        """Refuse what nothing here does."""
        super().check()
        if self.messages[-1].role == "assistant":
            raise ApiError("the last message is the assistant's; an answer is never continued", param="messages")
        choice = self.tool_choice
        if choice and choice.type == "tool" and choice.name not in [tool.name for tool in self.tools or []]:
            raise ApiError(f"tool_choice names {choice.name!r}, which is not among the tools", param="tool_choice")

    def formats(self) -> list[Grammar | None]:
        """Return all that it says of the form of an answer."""
        told = self.output_config.format if self.output_config else None
        return super().formats() if told is None else [*super().formats(), told.grammar()]


async def messages(session: Session, body: bytes, headers: Mapping[str, str]) -> Outcome:
    """Answer a request as Anthropic's API does."""
    request, history = read_with_history(MessagesRequest, body, session.known, MessagesRequest.in_openai_form)
    system = session.known.in_form(request.system_message())
    said, tools = request.tool_choice or ToolChoice(type="auto"), request.schemas()
    choice = CallChoice(said.type != "none", said.type in ("any", "tool"), said.name if said.type == "tool" else None)
    is_parallel = not said.disable_parallel_tool_use
    sampling = sampling_of(session, request, request.max_tokens, request.stop_sequences or ())
    ask = chat_ask(session, system + history, sampling, tools, choice, is_parallel=is_parallel)
    (answer,) = await session.chat(ask, asked_of(body, headers))
    reply = AnthropicReply(f"msg_{session.name}_{answer.turn}", request.model or "", answer)
    return Outcome(events=reply.events()) if request.stream else Outcome(reply.whole())


def count_tokens(agent: ChatAgent, body: bytes) -> Json:
    """Count the tokens of a prompt that begins a conversation."""
    request = read(CountRequest, body)
    conversation = agent.begin(request.schemas())
    conversation.observe(chat_messages(request.chat()))
    return {"input_tokens": len(conversation.prompt_ids())}


def _in_openai_form(message: AnthropicMessage) -> Iterator[Json]:
    """Yield what one message says: results of tools are messages of their own."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    blocks = [block for block in message.content if block.type not in _HIDDEN]
    if message.role == "assistant":
        calls = [
            {"id": block.id, "function": {"name": block.name, "arguments": block.input or {}}}
            for block in blocks
            if block.type == "tool_use"
        ]
        yield {
            "role": "assistant",
            "content": _content([b for b in blocks if b.type != "tool_use"]),
            "tool_calls": calls,
            "reasoning_content": "\n".join(
                block.thinking or "" for block in message.content if block.type == "thinking"
            ),
        }
        return
    results = [block for block in blocks if block.type == "tool_result"]
    for block in results:
        yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
    others = [block for block in blocks if block.type != "tool_result"]
    if others or not results:
        yield {"role": message.role, "content": _content(others)}


def _result(block: Block) -> str | list[Json]:
    """Return what came of a call; that it is an error is said in front, as templates know no flag for it."""
    said = _content(block.content or "")
    if not block.is_error:
        return said
    if not said:
        return "Error"
    return f"Error: {said}" if isinstance(said, str) else [{"type": "text", "text": "Error: "}, *said]


def _content(content: str | list[Block]) -> str | list[Json]:
    return content if isinstance(content, str) else [block.model_dump(exclude_none=True) for block in content]
