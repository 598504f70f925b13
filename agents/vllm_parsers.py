"""vLLM's own parsers of calls and thoughts behind our protocols: whole answers only, and nothing they raise escapes."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, schema_name
from ..envs.tools.json_calls import MOST_DEPTH, as_call
from ..errors import ConfigError, MissingPackageError
from .reasoning import Thought
from .vllm_names import CALL_ENDS, CLOSINGS, TYPED_ARGUMENTS, VLLM_TOOL_PARSERS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)
# Some of vLLM's parsers take time with the square of the length, or the cube of the depth, and a model that repeats
# itself writes such texts; meanwhile all other episodes of the process would wait.
MOST_CHARS = 32_768
_BRACKET = re.compile(r"[\[\](){}]")


class VllmCalls:
    """One of vLLM's tool-call parsers, made anew for each answer, as vLLM does for each request.

    Raises:
        ConfigError: The parser wants tokens that this tokenizer has not, or vLLM cannot read these schemas.
        MissingPackageError: vLLM is not installed.
    """

    def __init__(self, name: str, tokenizer: "PreTrainedTokenizerBase", tools: Sequence[Schema] = ()) -> None:
        self._name = name
        self.closing = CLOSINGS.get(name)
        self._begins = re.compile(VLLM_TOOL_PARSERS[name])
        self._ends = re.compile(CALL_ENDS[name]) if name in CALL_ENDS else None
        self._tokenizer = _Vocabulary(tokenizer)
        self._class: Any = _class_of("tool", name)  # Any: vLLM's classes share no useful type
        self._request = _request(tools)
        self._kinds = {schema_name(tool): _kinds(tool) for tool in tools}
        self._made()

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        begins = list(self._begins.finditer(text))
        whole, num_begun = text, len(begins)
        if begins and self._ends is not None and not self._ends.search(text, begins[-1].end()):
            # Cut off: what there is of its last argument is not what the model was to write.
            whole = text[: begins[-1].start()]
        content, calls = self._read(whole)
        if num_begun > len(calls):
            calls.append(_unreadable(self._name))
        return ParsedAnswer.of(content, calls)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any] | None:
        """Return the form that vLLM holds an answer to; see `ForcesCalls`. Not all of its parsers have one."""
        parser = self._made()
        if not hasattr(parser, "get_structural_tag"):
            return None
        tag = parser.get_structural_tag(_request(tools).model_copy(update={"tool_choice": "required"}))
        if tag is None:
            return None
        form: dict[str, Any] = tag.model_dump(mode="json", by_alias=True)["format"]
        return form if is_parallel else _of_one_call(form)

    def _read(self, text: str) -> tuple[str, list[ToolCall]]:
        if len(text) > MOST_CHARS or _depth(text) > MOST_DEPTH:
            return text, []
        try:
            found = self._made().extract_tool_calls(text, self._request)
            calls = [self._call(call, text) for call in found.tool_calls]
        except Exception as error:  # what a model writes is no reason to stop, and vLLM's parsers are many
            _logger.debug("vLLM's parser %r failed on %r", self._name, text, exc_info=error)
            return text, []
        is_mark_alone = found.tools_called and not calls
        return (text if is_mark_alone else found.content or ""), calls

    def _call(self, call: Any, text: str) -> ToolCall:
        """Return a call of vLLM's as ours; ids that it made up itself are not the model's."""
        call_id = call.id if call.id and call.id in text else None
        made = as_call({"name": call.function.name, "arguments": call.function.arguments, "id": call_id})
        if self._ends is None or self._name in TYPED_ARGUMENTS:
            return made
        kinds = self._kinds.get(made.name, {})
        given = {key: value for key, value in made.arguments.items() if not _is_left_out(value, kinds.get(key))}
        return replace(made, arguments=given)

    def _made(self) -> Any:
        try:
            return self._class(self._tokenizer, self._request.tools)
        except Exception as error:
            raise ConfigError(
                f"the tool-call parser {self._name!r} is not made for this model's tokenizer: {_one_line(error)}; "
                "give --rollout.tool_parser the one of the model's family"
            ) from error


class VllmThoughts:
    """One of vLLM's reasoning parsers.

    Raises:
        ConfigError: The parser wants tokens that this tokenizer has not.
        MissingPackageError: vLLM is not installed.
    """

    def __init__(self, name: str, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._name = name
        self._tokenizer = _Vocabulary(tokenizer)
        self._class: Any = _class_of("reasoning", name)
        self._request = _request(())
        self._made()

    def split(self, text: str) -> Thought:
        """Take the thoughts out of an answer; see `ReasoningParser`."""
        try:
            reasoning, content = self._made().extract_reasoning(text, self._request)
        except Exception as error:  # as above
            _logger.debug("vLLM's reasoning parser %r failed on %r", self._name, text, exc_info=error)
            return Thought(None, text)
        return Thought(reasoning, content or "")

    def _made(self) -> Any:
        try:
            return self._class(self._tokenizer)
        except Exception as error:
            raise ConfigError(
                f"the reasoning parser {self._name!r} is not made for this model's tokenizer: {_one_line(error)}; "
                "give --rollout.reasoning_parser the one of the model's family"
            ) from error


class _Vocabulary:
    """A tokenizer whose vocabulary is read once: vLLM's parsers ask for all of it each time one is made."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._vocabulary: dict[str, int] = tokenizer.get_vocab()

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def __len__(self) -> int:
        return len(self._vocabulary)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _of_one_call(form: dict[str, Any]) -> dict[str, Any]:
    """Return a form that ends behind its first call, where vLLM's says how calls follow one another."""
    return {**form, "stop_after_first": True} if "stop_after_first" in form else form


def _class_of(kind: str, name: str) -> Any:
    try:
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "vllm":
            raise
        raise MissingPackageError(
            f"the {kind} parser {name!r} is vLLM's, and vLLM is not installed: "
            "pip install 'turngym[gpu]' (or [cpu]); 'json', 'openai' and 'cohere_command3' need no vLLM"
        ) from error
    for module in ("vllm.tool_parsers", "vllm.reasoning", "vllm.parser"):
        logging.getLogger(module).setLevel(
            logging.CRITICAL
        )  # a call that cannot be read is told the model, not the log
    try:
        get = ToolParserManager.get_tool_parser if kind == "tool" else ReasoningParserManager.get_reasoning_parser
        return get(name)
    except KeyError as error:
        raise ConfigError(f"the installed vLLM has no {kind} parser {name!r}; it is from another version") from error


def _request(tools: Sequence[Schema]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    given = {"tools": list(tools), "tool_choice": "auto"} if tools else {}
    try:
        return ChatCompletionRequest.model_validate(
            {"model": "model", "messages": [{"role": "user", "content": ""}], **given}
        )
    except ValueError as error:
        raise ConfigError(f"vLLM cannot read the schemas of these tools: {_one_line(error)}") from error


def _depth(text: str) -> int:
    """Return how many brackets are open at once, at most."""
    deepest = depth = 0
    for bracket in _BRACKET.findall(text):
        depth = depth + 1 if bracket in "{[(" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest


def _kinds(tool: Schema) -> dict[str, str]:
    """Return the types of a tool's parameters, as far as each has one."""
    properties = (tool["function"].get("parameters") or {}).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    kinds = {name: schema.get("type") for name, schema in properties.items() if isinstance(schema, Mapping)}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, str)}


def _is_left_out(value: object, kind: str | None) -> bool:
    """Say whether text that stands for an argument is none: an empty tag is how these formats leave a number out."""
    return value in ("", "None") and kind not in (None, "string")


def _unreadable(name: str) -> ToolCall:
    return ToolCall(
        "", {}, f"Nothing was run: a tool call could not be read. Write it in the form that you were shown ({name})."
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
