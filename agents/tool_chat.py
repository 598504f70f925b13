"""Conversations with tools: the model is told of them whatever its template can do, and answers come back parsed."""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ..envs.base import Action
from ..envs.messages import Message, RawText
from ..envs.tools.calls import Schema, ToolCallParser, schema_name
from ..errors import TemplateError
from .base import Completion, Sampling
from .chat import ChatConversation
from .template import ChatTemplate, text_of
from .tokenizer import Codec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST_TEMPLATES = 64
_USER = "zqUserqz"  # no template contains or changes it
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
        preface: What tells the model instead, in a message of this role.
        shows_results: Messages of role `tool` are shown; otherwise the user says what they hold.
    """

    template: ChatTemplate | None
    preface: str | None = None
    role: str = "system"
    shows_results: bool = True


class ToolTemplates:
    """A model's templates, one for each set of tools; the last few are kept."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template_kwargs: Mapping[str, Any] | None) -> None:
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs
        self._kept: OrderedDict[str, ToolTemplate] = OrderedDict()

    def of(self, tools: Sequence[Schema], plain: ChatTemplate | None) -> ToolTemplate:
        """Return how the model is told of these tools, where `plain` is its template without any."""
        if plain is None:
            return ToolTemplate(None, shows_results=False)
        key = json.dumps(tools, sort_keys=True, default=repr)
        if key not in self._kept:
            self._kept[key] = self._made(tools, plain)
            if len(self._kept) > _MOST_TEMPLATES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _made(self, tools: Sequence[Schema], plain: ChatTemplate) -> ToolTemplate:
        with_tools = ChatTemplate(self._tokenizer, template_kwargs=self._kwargs, tools=tools)
        told, untold = (_rendered(each, Message(role="user", content=_USER)) for each in (with_tools, plain))
        if all(told.count(schema_name(tool)) > untold.count(schema_name(tool)) for tool in tools):
            return ToolTemplate(with_tools, shows_results=_shows_results(with_tools))
        preface = _PREFACE.format(schemas="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
        role = "system" if _shows_system(plain) else "user"
        return ToolTemplate(plain, preface, role, _shows_results(plain))


class ToolConversation(ChatConversation):
    """One episode's context, with tools; see `ChatAgent`."""

    def __init__(self, codec: Codec, told: ToolTemplate, parser: ToolCallParser) -> None:
        super().__init__(codec, told.template)
        self._told = told
        self._parser = parser
        self._is_told = told.preface is None

    def observe(self, observation: list[Message] | RawText, *, is_last: bool = False) -> None:
        """Append what the environment said, the first time behind what tells the model of its tools."""
        if not self._is_told and not isinstance(observation, RawText):
            observation = _prefaced(observation, self._told)
        self._is_told = True
        if not self._told.shows_results and not isinstance(observation, RawText):
            observation = _results_by_user(observation)
        super().observe(observation, is_last=is_last)

    def record(self, completion: Completion, sampling: Sampling, *, with_query: bool = False) -> Action:
        """Append what was sampled and return it as the environment's action, its calls parsed."""
        action = super().record(completion, sampling, with_query=with_query)
        assert self._answer is not None  # it has just been recorded
        action.parsed = self._parser.parse(self._answer.body)
        return action


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
        results = [f"<tool_response>\n{text_of(message) or ''}\n</tool_response>" for message in together]
        put.append(Message(role="user", content="\n".join(results)))
    return put


def _shows_results(template: ChatTemplate) -> bool:
    """Say whether a result behind an answer is shown; some templates drop it, or want calls in a form of their own."""
    talk: list[Message] = [
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
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
