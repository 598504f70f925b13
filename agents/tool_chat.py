"""Conversations with tools: the model is told of them whatever its template can do, and answers come back parsed."""

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from ..envs.base import Action
from ..envs.images import has_images
from ..envs.messages import Message, RawText
from ..envs.tools.calls import Schema, ToolCall, schema_name
from ..envs.tools.json_calls import is_shallow
from ..errors import TemplateError
from .answer_reader import AnswerReader, AnswerReaders, ReadAnswer
from .base import Completion, Sampling, StopReason
from .call_ends import end_of_calls, stop_mark, up_to
from .conversation import Answer, ChatConversation
from .harmony import with_recipients_first
from .picture_text import PictureText, with_images
from .prefix import Reading, end_of_answer
from .template import ChatTemplate, text_of
from .tokenizer import Codec, Said

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_TEMPLATES = 64
_MOST_LEVELS = 32  # of arguments that a template is asked to write again
_USER = "zqUserqz"  # no template contains or changes it
_ANSWER = Message(role="assistant", content="b")
_CALL = ReadAnswer(None, "", (ToolCall("c", {}),))
_PREFACE = """\
You can call functions. For each call write
<tool_call>
{{"name": NAME, "arguments": {{...}}}}
</tool_call>
You are then shown what it gave. When you need no more, answer without any call. These are the functions, one a line:
{schemas}"""


@dataclass(frozen=True)
class ToolTemplate:
    """How a model is told of tools.

    Attributes:
        template: With the tools, if it shows them; None where texts are sent as they are.
        reader: Takes the model's answers apart.
        preface: What tells the model instead, in a message of this role.
        shows_results: Messages of role `tool` are shown behind an answer in plain text.
        wants_calls: They are shown only behind an answer whose calls stand in a field of their own. Where neither is
            so, or what was sampled is not what the template makes of that field, the user says what they hold.
    """

    template: ChatTemplate | None
    reader: AnswerReader
    preface: str | None = None
    role: str = "system"
    shows_results: bool = True
    wants_calls: bool = False


class ToolTemplates:
    """A model's templates, one for each set of tools; the last few are kept."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", template_kwargs: Mapping[str, Any] | None, readers: AnswerReaders
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        self._readers = readers
        self._kept: OrderedDict[str, ToolTemplate] = OrderedDict()

    def of(self, tools: Sequence[Schema], plain: ChatTemplate | None) -> ToolTemplate:
        """Return how the model is told of these tools, where `plain` is its template without any."""
        key = json.dumps(tools, sort_keys=True, default=repr)
        if key not in self._kept:
            self._kept[key] = self._made(tools, plain)
            if len(self._kept) > _MOST_TEMPLATES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _made(self, tools: Sequence[Schema], plain: ChatTemplate | None) -> ToolTemplate:
        opened = plain.shape.opened if plain else ""
        if plain is None:
            return ToolTemplate(None, self._readers.of(tools, has_own_form=False), shows_results=False)
        if not tools:
            return ToolTemplate(plain, self._readers.of(opened=opened))
        with_tools = ChatTemplate(self._tokenizer, template_kwargs=self._kwargs, tools=tools)
        told, untold = (_rendered(each, Message(role="user", content=_USER)) for each in (with_tools, plain))
        if all(told.count(schema_name(tool)) > untold.count(schema_name(tool)) for tool in tools):
            reader = self._readers.of(tools, opened=with_tools.shape.opened)
            shows_results = _shows_results(with_tools, _ANSWER)
            wants_calls = not shows_results and _shows_results(with_tools, call_message(_CALL, 0))
            return ToolTemplate(with_tools, reader, shows_results=shows_results, wants_calls=wants_calls)
        reader = self._readers.of(tools, opened=opened, has_own_form=False)
        preface = _PREFACE.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        role = "system" if _shows_system(plain) else "user"
        return ToolTemplate(plain, reader, preface, role, _shows_results(plain, _ANSWER))


class ToolConversation(ChatConversation):
    """One episode's context, with tools; see `ChatAgent`."""

    def __init__(self, codec: Codec, told: ToolTemplate, pictures: PictureText | None = None) -> None:
        super().__init__(codec, told.template, pictures)
        self._told = told
        self._read: ReadAnswer | None = None  # the last completion
        self._num_calls = 0  # before it
        self._ends_at_calls = False
        self._has_call_fields = False  # the template wants them, and writes them as they were sampled
        self._is_told = told.preface is None

    def end_at_calls(self) -> str | None:
        """Leave out what stands behind the last call of an answer; see `executors.episodes.base.EndsAtCalls`."""
        self._ends_at_calls = True
        return stop_mark(self._told.reader)

    def observe(self, observation: list[Message] | RawText, *, is_last: bool = False) -> None:
        """Append what the environment said, the first time behind what tells the model of its tools."""
        if not self._is_told and not isinstance(observation, RawText):
            observation = _prefaced(observation, self._told)
        self._is_told = True
        self._has_call_fields = False
        if not self._told.shows_results and not isinstance(observation, RawText):
            self._has_call_fields = self._told.wants_calls and self._continues_behind_fields(observation)
            if not self._has_call_fields:
                observation = _results_by_user(observation)
        super().observe(observation, is_last=is_last)

    def record(self, completion: Completion, sampling: Sampling, *, with_query: bool = False) -> Action:
        """Append what was sampled and return it as the environment's action, its calls parsed."""
        action = super().record(completion, sampling, with_query=with_query)
        self._num_calls += len(self._read.calls) if self._read else 0
        self._read = self._told.reader.read(self.written(sampling))
        action.parsed = self._read.parsed
        return action

    def written(self, sampling: Sampling) -> str:
        """Return the answer that was recorded last; marks of calls may be special tokens themselves, and stay."""
        assert self._answer is not None  # `record` comes first
        return self._written(self._answer, sampling)

    def _kept(self, completion: Completion, sampling: Sampling) -> tuple[Completion, Said]:
        """Return what was sampled up to its last call, where nothing behind that is to stay, and its text."""
        whole, said = super()._kept(completion, sampling)
        if not self._ends_at_calls or whole.stop_reason is StopReason.ABORT:
            return whole, said
        text = self._written(Answer(whole.token_ids, said.num_end, said.body), sampling)
        end = end_of_calls(self._told.reader, text)
        return (whole, said) if end == len(text) else super()._kept(up_to(whole, self._codec, text, end), sampling)

    def _written(self, answer: Answer, sampling: Sampling) -> str:
        ids, num_end, body = answer
        stop, least = len(ids), len(ids) - num_end
        while stop > least and self._ends_turn(ids[stop - 1 : stop], sampling):
            stop -= 1
        return body if stop == least else self._codec.decode(ids[:stop])

    def _readings(self, template: ChatTemplate) -> Iterator[Reading]:
        """Yield the answer as text first, then with its calls in fields of their own, as some templates want them."""
        if self._answer is None or self._read is None:
            yield from super()._readings(template)
            return
        with_calls = self._readings_with_calls(template, self._answer, self._read)
        if not self._has_call_fields:
            end = self._end_of(self._answer)
            for reading in super()._readings(template):
                if reading.end != end:  # from here on, special tokens at the end are taken for part of the answer
                    yield from with_calls
                yield reading
        yield from with_calls

    def _continues_behind_fields(self, observation: list[Message]) -> bool:
        """Say whether the template, given the calls in fields of their own, writes them as they were sampled."""
        template = self._template
        if template is None or self._view is None or self._answer is None or self._read is None:
            return False
        new = [template.prepare(with_images(message, self._pictures)) for message in observation]
        for reading in self._readings_with_calls(template, self._answer, self._read):
            try:
                chat = [*self._chat, *reading.messages, *new]
                text = template.render(chat, add_generation_prompt=True, strftime_now=self._clock)
            except TemplateError:
                continue
            if end_of_answer(text, self._view, reading) is not None:
                return True
        return False

    def _readings_with_calls(self, template: ChatTemplate, answer: Answer, read: ReadAnswer) -> Iterator[Reading]:
        if not read.calls or any(
            call.problem is not None or not is_shallow(call.arguments, _MOST_LEVELS) for call in read.calls
        ):
            return
        end = self._end_of(answer)
        for as_text in (False, True):
            message = template.prepare(call_message(read, self._num_calls, as_text=as_text))
            for body in dict.fromkeys((answer.body, with_recipients_first(answer.body))):
                yield Reading([message], body, end)

    def _end_of(self, answer: Answer) -> str:
        return self._codec.decode_few(answer.token_ids[len(answer.token_ids) - answer.num_end :])

    def _ends_turn(self, token_id: NDArray[np.int32], sampling: Sampling) -> bool:
        if int(token_id[0]) in (self._codec.eos_id, *sampling.stop_token_ids):
            return True
        return self._template is not None and self._template.shape.is_end(self._codec.decode_few(token_id))


def call_message(read: ReadAnswer, first_id: int, *, as_text: bool = False) -> Message:
    """Return an answer as a message with its thoughts and calls in fields of their own.

    Args:
        read: The answer.
        first_id: Calls without an id are counted from here on.
        as_text: Give the arguments as JSON text, which is what clients send; by default as an object, which is what
            most templates want.
    """
    calls = [
        {
            "type": "function",
            "id": call.id or f"call_{first_id + index}",
            "function": {
                "name": call.name,
                "arguments": json.dumps(dict(call.arguments), ensure_ascii=False) if as_text else dict(call.arguments),
            },
        }
        for index, call in enumerate(read.calls)
    ]
    thoughts = {} if read.reasoning is None else {"reasoning_content": read.reasoning, "thinking": read.reasoning}
    return cast(Message, {"role": "assistant", "content": read.content, "tool_calls": calls, **thoughts})


def _can_be_written_again(call: ToolCall) -> bool:
    return call.problem is None and is_shallow(call.arguments, _MOST_LEVELS)


def _prefaced(messages: list[Message], told: ToolTemplate) -> list[Message]:
    preface = told.preface or ""
    first = messages[0] if messages else None
    content = first.get("content") if first else None
    if first is not None and first["role"] == told.role and isinstance(content, str):
        both = f"{content}\n\n{preface}" if told.role == "system" else f"{preface}\n\n{content}"
        return [{**first, "content": both}, *messages[1:]]
    return [Message(role="system" if told.role == "system" else "user", content=preface), *messages]


def _results_by_user(messages: list[Message]) -> list[Message]:
    """Put the results of tools that follow one another into one message of the user."""
    put: list[Message] = []
    for is_result, together in groupby(messages, key=lambda message: message["role"] == "tool"):
        if not is_result:
            put += together
            continue
        parts: list[dict[str, Any]] = []
        for message in together:
            content = message.get("content") or ""
            shown = [_text(content)] if isinstance(content, str) else content
            parts += [
                _text("\n<tool_response>\n" if parts else "<tool_response>\n"),
                *shown,
                _text("\n</tool_response>"),
            ]
        said = Message(role="user", content=parts)
        put.append(said if has_images(said) else {**said, "content": text_of(said) or ""})
    return put


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _shows_results(template: ChatTemplate, answer: Message) -> bool:
    """Say whether a result behind an answer is shown; some templates drop it, or want calls in a form of their own."""
    talk: list[Message] = [
        Message(role="user", content="a"),
        answer,
        Message(role="tool", name="c", tool_call_id="call_0", content=_USER),
    ]
    try:
        return _USER in _rendered(template, *talk)
    except TemplateError:
        return False


def _shows_system(template: ChatTemplate) -> bool:
    try:
        return _USER in _rendered(template, Message(role="system", content=_USER), Message(role="user", content="a"))
    except TemplateError:
        return False


def _rendered(template: ChatTemplate, *messages: Message) -> str:
    return template.render([template.prepare(message) for message in messages], add_generation_prompt=True)
