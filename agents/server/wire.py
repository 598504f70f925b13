"""Requests as they come over the wire: their fields, and what this server refuses of them."""

import marshal
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from ..base import MOST_TOP_LOGPROBS
from .api_errors import ApiError
from .fields import OF_OPENAI, Refusal, refused
from .shaping import Shaping

Json = Any  # what `json.loads` gives
Count = Annotated[int, Field(ge=1, le=1 << 31)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Text = Annotated[str, Field(min_length=1)]
MAX_CHOICES = 128  # OpenAI's own limit

UNSUPPORTED = "unsupported_parameter"
_INFINITIES = [marshal.dumps(sign * math.inf, 2) for sign in (1, -1)]


class WireModel(BaseModel):
    """What comes over the wire; strict: a number in quotes is no number. Fields that nobody knows are ignored."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def check(self) -> None:
        """Raise `ApiError` for what is well formed and refused."""


class Generation(Shaping, WireModel):
    """What all requests for tokens have in common."""

    refusals: ClassVar[Mapping[str, Refusal]] = OF_OPENAI

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop_token_ids: list[TokenId] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    session_id: str | None = None

    def check(self) -> None:
        """Refuse what nothing here does."""
        for name, value in (self.model_extra or {}).items():
            if (reason := refused(self.refusals, name, value)) is not None:
                raise ApiError(f"{name!r} is not supported: {reason}", param=name, code=UNSUPPORTED)


class Part(WireModel):
    """One part of a content; parts that are not text are the template's to refuse."""

    type: str
    text: str | None = None

    @model_validator(mode="after")
    def _hold_text(self) -> "Part":
        if self.type in ("text", "input_text", "output_text") and self.text is None:
            raise ValueError(f"a part of type {self.type!r} needs text")
        return self


class Function(WireModel):
    """The function of a call."""

    name: str
    arguments: str | dict[str, Json] | None = None


class Call(WireModel):
    """A call in a history."""

    id: str | None = None
    function: Function


class ChatMessage(WireModel):
    """A message of a history."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: Json = None  # refused
    tool_calls: list[Call] | None = None
    function_call: Function | None = None
    tool_call_id: str | None = None

    @field_validator("audio")
    @classmethod
    def _be_silent(cls, audio: Json) -> None:
        if audio is not None:
            raise ValueError("nothing is spoken or heard here")


class ToolFunction(WireModel):
    """A function that the model may call."""

    name: Text
    description: str | None = None
    parameters: dict[str, Json] | None = None


class Tool(WireModel):
    """A tool; others than functions are refused."""

    type: Literal["function"] = "function"
    function: ToolFunction

    def to_schema(self) -> dict[str, Json]:
        """Return the schema that templates read."""
        return schema_of(self.function)


def schema_of(function: ToolFunction) -> dict[str, Json]:
    """Return a function's schema with all that templates rely on."""
    parameters = {"type": "object", "properties": {}, **(function.parameters or {})}
    parameters["properties"] = parameters["properties"] or {}  # null, or the empty list that PHP writes
    named = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": named}


class OpenAIGeneration(Generation):
    """What all of OpenAI's requests for tokens have in common."""

    max_tokens: Count | None = None
    stream_options: dict[str, Json] | None = None
    stop: str | Annotated[list[Text], Field(max_length=64)] | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """All strings that end an answer."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(each for each in stop if each)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatRequest(OpenAIGeneration):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Json] | None = None
    parallel_tool_calls: bool | None = None

    def check(self) -> None:
        """Refuse an unknown tool_choice, and top logprobs without logprobs."""
        super().check()
        if isinstance(self.tool_choice, dict):
            function = self.tool_choice.get("function")
            name = function.get("name") if isinstance(function, Mapping) else None
            if name not in [tool.function.name for tool in self.tools or []]:
                raise ApiError(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs stand beside logprobs; set logprobs to true", param="top_logprobs")


class CompletionRequest(OpenAIGeneration):
    """`POST /v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_CHOICES)]
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None


class TokenizeRequest(WireModel):
    """`POST /tokenize`: a text, or messages."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Json] | None = None
    session_id: str | None = None

    def check(self) -> None:
        """Refuse special tokens that no prompt has."""
        if self.add_special_tokens:
            raise ApiError(
                "'add_special_tokens' is not supported: none is added to a prompt; write those that it is to have",
                param="add_special_tokens",
                code=UNSUPPORTED,
            )

    @model_validator(mode="after")
    def _hold_one(self) -> "TokenizeRequest":
        if (self.prompt is None) == (not self.messages):
            raise ValueError("wanted a prompt, or messages")
        return self


class DetokenizeRequest(WireModel):
    """`POST /detokenize`."""

    tokens: list[TokenId]
    session_id: str | None = None


Wire = TypeVar("Wire", bound=WireModel)


def value_of(body: bytes) -> Json:
    """Return what a body holds.

    Raises:
        ApiError: It is no JSON, or holds a number that JSON has not: NaN, an infinity, or one beyond all floats.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}") from error
    written = marshal.dumps(value, 2)  # in which infinities are found far quicker than by a look at each value
    if any(each in written for each in _INFINITIES):
        raise ApiError("the body holds a number such as 1e999, which no float can be; wanted finite numbers")
    return value


def read(kind: type[Wire], body: bytes) -> Wire:
    """Return the request that a body holds.

    Raises:
        ApiError: It holds none, or one that is refused.
    """
    try:
        request = kind.model_validate(value_of(body))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        told = max(errors, key=lambda each: len(each["loc"]))  # of a union's, the one that got furthest
        param = ".".join(map(str, told["loc"])) or None
        raise ApiError(f"{param or 'the body'}: {told['msg']}", param=param) from None
    request.check()
    return request
