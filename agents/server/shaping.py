"""What a request says of the shape of an answer, in the words of OpenAI's API and of vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import ConfigError
from ..answer_grammar import answer_grammar
from ..base import Sampling
from ..chat import ChatAgent
from ..shape import Grammar, GrammarKind, Shape
from .api_errors import ApiError

Json = Any  # what `json.loads` gives
Penalty = Annotated[float, Field(ge=-2, le=2)]
Text = Annotated[str, Field(min_length=1)]

_OF_THE_RUN = ("presence_penalty", "frequency_penalty", "repetition_penalty")
"""What a session that keeps its sampling does not leave to requests: they tune, as a temperature does."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class NamedSchema(_Strict):
    """The schema of a response format."""

    name: str | None = None
    schema_: Annotated[dict[str, Json], Field(alias="schema")]


class ResponseFormat(_Strict):
    """OpenAI's `response_format`; its newer APIs have the schema beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[dict[str, Json] | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _hold_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None and self.schema_ is None:
            raise ValueError("a format of type 'json_schema' needs a schema")
        return self

    def grammar(self) -> Grammar | None:
        """Return what it says; None for plain text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return Grammar.json_object()
        schema = self.json_schema.schema_ if self.json_schema else self.schema_
        return Grammar.json_schema(schema or {})


class StructuredOutputs(_Strict):
    """vLLM's `structured_outputs`."""

    json_: Annotated[dict[str, Json] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Text | None = None
    choice: list[Text] | None = None
    grammar: Text | None = None
    structural_tag: Text | None = None

    @model_validator(mode="after")
    def _refuse_tags(self) -> "StructuredOutputs":
        if self.structural_tag is not None:
            raise ValueError(
                "structural tags are made here, of tools and thoughts; give json, regex, choice or grammar"
            )
        return self

    def grammars(self) -> list[Grammar]:
        """Return all that it says."""
        found = [] if self.json_ is None else [_of_schema(self.json_)]
        found += [Grammar.json_object()] if self.json_object else []
        found += [] if self.regex is None else [Grammar.regex(self.regex)]
        found += [] if self.choice is None else [Grammar.choice(self.choice)]
        return found + ([] if self.grammar is None else [Grammar.ebnf(self.grammar)])


class Shaping(_Strict):
    """The fields of a request that shape the distribution."""

    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    bad_words: Annotated[list[Text], Field(max_length=1024)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Json] | str | None = None
    guided_regex: Text | None = None
    guided_choice: list[Text] | None = None
    guided_grammar: Text | None = None

    def formats(self) -> list[Grammar | None]:
        """Return all that the request says of the form of an answer."""
        older: dict[str, Json] = {"json": self.guided_json, "regex": self.guided_regex}
        older |= {"choice": self.guided_choice, "grammar": self.guided_grammar}
        found: list[Grammar | None] = list(StructuredOutputs.model_validate(older).grammars())
        found += [] if self.structured_outputs is None else self.structured_outputs.grammars()
        return found if self.response_format is None else [*found, self.response_format.grammar()]


def shape_of(request: Shaping, base: Shape | None, num_tokens: int, *, keeps_sampling: bool) -> Shape | None:
    """Return what shapes the answer: what the request says, and for the rest what the session does.

    Args:
        request: The client's.
        base: The session's.
        num_tokens: How many ids the model has.
        keeps_sampling: Leave penalties to the session.

    Raises:
        ApiError: It says what is no shape.
    """
    names = ("bad_words", "min_tokens", *(() if keeps_sampling else _OF_THE_RUN))
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    try:
        formats = request.formats()
        if len(formats) > 1:
            raise ApiError(f"an answer has one form, and {len(formats)} are wanted", param="response_format")
        if formats:
            given["grammar"] = formats[0]
        if request.logit_bias is not None:
            given["logit_bias"] = _biases(request.logit_bias, num_tokens)
        shape = replace(base or Shape(), **given)
    except ConfigError as error:
        raise ApiError(str(error), param="response_format") from error
    return None if shape.is_none else shape


@dataclass(frozen=True)
class CallChoice:
    """What a request says of calls.

    Attributes:
        takes_calls: Whether they are read.
        must_call: Whether one must come.
        only: The name of the one tool that may be called; None for all.
    """

    takes_calls: bool = True
    must_call: bool = False
    only: str | None = None

    @classmethod
    def of(cls, said: Json) -> "CallChoice":
        """Return what `tool_choice` means, as OpenAI's APIs have it: a word, or an object with a function's name.

        Raises:
            ApiError: The name is no text.
        """
        if isinstance(said, Mapping):
            function = said.get("function")
            name = function.get("name") if isinstance(function, Mapping) else said.get("name")
            if name is not None and not isinstance(name, str):
                raise ApiError(f"tool_choice needs a function's name, got {name!r:.100}", param="tool_choice")
            return cls(must_call=True, only=name)
        return cls(takes_calls=said != "none", must_call=said == "required")


def in_chat(
    agent: ChatAgent, sampling: Sampling, tools: Sequence[Json] | None, choice: CallChoice, *, is_parallel: bool
) -> Sampling:
    """Return how to sample an answer to messages: its grammar leaves room for a thought, and for calls.

    Args:
        agent: The model's.
        sampling: With the form that an answer must have which is no call.
        tools: Their schemas.
        choice: Which of them may or must be called.
        is_parallel: Whether several may be called at once.

    Raises:
        ApiError: A call must come, and there is no such tool.
        RequestRefusedError: See `answer_grammar`.
    """
    said = sampling.shape.grammar if sampling.shape else None
    if said is None and not choice.must_call:
        return sampling
    named = [tool for tool in tools or () if choice.only in (None, tool["function"]["name"])]
    if choice.must_call and not named:
        raise ApiError("tool_choice wants a call, and there are no such tools", param="tool_choice")
    grammar = answer_grammar(
        agent.reader(tools or ()),
        agent.readers.template,
        said,
        named if choice.takes_calls else (),
        must_call=choice.must_call,
        is_parallel=is_parallel and choice.only is None,
    )
    return replace(sampling, shape=replace(sampling.shape or Shape(), grammar=grammar))


def _of_schema(schema: Mapping[str, Json] | str) -> Grammar:
    if isinstance(schema, str):
        return Grammar(GrammarKind.JSON_SCHEMA, schema)
    return Grammar.json_schema(schema)


def _biases(said: Mapping[str, float] | None, num_tokens: int) -> tuple[tuple[int, float], ...]:
    biases = []
    for key, bias in (said or {}).items():
        if not key.isdecimal() or len(key) > 10 or int(key) >= num_tokens:
            raise ApiError(
                f"logit_bias names {key!r:.100}; the model's token ids are 0 to {num_tokens - 1}", param="logit_bias"
            )
        biases += [(int(key), bias)] if bias else []
    return tuple(biases)
