"""The messages that a session was sent: each is checked and brought into form once, however often it comes."""

import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from ...envs.messages import Message
from .canonical import Form, Json, chat_messages, form_of, tools_form
from .kept import KeptLists

ChatForm = Iterable[Mapping[str, Json]]  # what stands for one message in a chat completion
_MOST = 1 << 14  # messages that a session keeps in mind; with more, it begins anew


@dataclass(frozen=True)
class SentMessages:
    """Messages in the form that templates read, and what each of them says."""

    messages: list[Message]
    forms: list[Form]

    def __add__(self, later: "SentMessages") -> "SentMessages":
        """Return these with others behind them."""
        return SentMessages([*self.messages, *later.messages], [*self.forms, *later.forms])


class _Known(NamedTuple):
    message: Message  # a tool's without the name that only an earlier call tells
    form: Form


class KnownMessages:
    """What the clients of one session have sent: each message, by all that is written in it.

    Attributes:
        kept: What stored responses say.
    """

    def __init__(self) -> None:
        self.kept = KeptLists()
        self._by_key: dict[bytes, tuple[_Known, ...]] = {}
        self._tools: dict[bytes, Form] = {}

    def num_known(self, kind: str, messages: Sequence[Json]) -> tuple[int, list[bytes]]:
        """Return how many messages at the beginning were sent before, and the keys of all."""
        keys = [_key(kind, each) for each in messages]
        return next((place for place, key in enumerate(keys) if key not in self._by_key), len(keys)), keys

    def sent(self, keys: Sequence[bytes], new: Sequence[ChatForm]) -> SentMessages:
        """Return messages by their keys, and of those at the end that are to be read what stands for each."""
        known = [self._by_key[key] for key in keys[: len(keys) - len(new)]]
        read = [self._remembered(key, each) for key, each in zip(keys[len(known) :], new, strict=True)]
        return _together([*known, *read])

    def in_form(self, given: Sequence[Mapping[str, Json]]) -> SentMessages:
        """Return messages that come in the form of chat completions."""
        return _together([self._remembered(_key("chat", each), [each]) for each in given])

    def form_of_tools(self, tools: Sequence[Json] | None) -> Form:
        """Return what a list of tools says."""
        key = _key("tools", tools)
        if key not in self._tools:
            self._tools[key] = tools_form(tools)
        return self._tools[key]

    def _remembered(self, key: bytes, chat_form: ChatForm) -> tuple[_Known, ...]:
        known = self._by_key.get(key)
        if known is None:
            messages = [chat_messages([each])[0] for each in chat_form]
            known = tuple(_Known(message, form_of(message)) for message in messages)
            if len(self._by_key) >= _MOST:
                self._by_key.clear()
            self._by_key[key] = known
        return known


def _together(known: Iterable[tuple[_Known, ...]]) -> SentMessages:
    """Put messages together, and name the functions whose results they hold."""
    names: dict[str, str] = {}  # by the ids of their calls
    sent = SentMessages([], [])
    for message, form in (each for together in known for each in together):
        for call in message.get("tool_calls", ()):
            if "id" in call:
                names[call["id"]] = call["function"]["name"]
        if "name" not in message and (name := names.get(message.get("tool_call_id", ""))):
            message = message.copy()  # what is kept belongs to all histories that it stands in
            message["name"] = name
        sent.messages.append(message)
        sent.forms.append(form)
    return sent


def _key(kind: str, value: Json) -> bytes:
    """Return a digest that only the same value has, its types and the order of its keys included."""
    return blake2b(kind.encode() + marshal.dumps(value, 2), digest_size=16).digest()  # version 2 has no references
