"""GPT-OSS's format, Harmony: messages in channels, of which some are thoughts, some calls and some the answer.

An answer begins behind `<|start|>assistant`, so its first message has no such beginning.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, arguments_form, schema_name
from ..envs.tools.json_calls import as_call
from .reasoning import Thought

START, CHANNEL, BODY = "<|start|>", "<|channel|>", "<|message|>"
_END = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_NAME = re.compile(r"[^\s<]+")
_CALL_HEADER = re.compile(r"<\|channel\|>(commentary|analysis) to=([^\s<]+) ?(?:<\|constrain\|>)?(\w*)<\|message\|>")
_MARK = re.compile(r"<\|(?:start|channel|message|constrain|end|call|return)\|>")
_PEOPLE = ("assistant", "user", "system", "developer")  # who are no tools
_THOUGHTS = "analysis"


class _Part(NamedTuple):
    """One message: who or what it is for, its channel, what it says, and its whole text."""

    recipient: str
    channel: str
    body: str | None  # None where the header never ended
    text: str

    @property
    def is_call(self) -> bool:
        return bool(self.recipient) and self.recipient not in _PEOPLE

    @property
    def is_thought(self) -> bool:
        return self.channel == _THOUGHTS and not self.is_call


class HarmonyThoughts:
    """What stands in the channel `analysis`; the rest stays as it was written where there are calls in it."""

    def split(self, text: str) -> Thought:
        """Take the thoughts out of an answer; see `ReasoningParser`."""
        parts = list(_parts(text))
        thoughts = [part.body or "" for part in parts if part.is_thought]
        rest = [part for part in parts if not part.is_thought]
        has_calls = any(part.is_call for part in rest)
        content = "".join(part.text for part in rest) if has_calls else _content(rest)
        return Thought("\n".join(thoughts) if thoughts else None, content)

    def text_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the form of an answer of text alone, in the channel `final`; see `FramesText`."""
        begins = _one_of(f"{CHANNEL}final{BODY}", f"{CHANNEL}final <|constrain|>json{BODY}")
        return {"type": "sequence", "elements": [begins, form]}

    def answer_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the form of an answer that may begin with thoughts; see `FramesThoughts`."""
        said = {"type": "any_text", "excludes": [START, CHANNEL, BODY, "<|constrain|>", "<|call|>", "<|return|>"]}
        thought = {"type": "tag", "begin": f"{CHANNEL}{_THOUGHTS}{BODY}", "content": said, "end": "<|end|>"}
        again = f"{START}assistant"
        thoughts = {"type": "tags_with_separator", "tags": [thought], "separator": again, "at_least_one": True}
        behind = {"type": "sequence", "elements": [thoughts, {"type": "const_string", "value": again}, form]}
        return {"type": "or", "elements": [behind, form]}


class HarmonyCalls:
    """Calls are messages to `functions.NAME`, with JSON as their text.

    A header that is none is text of the answer, as is all that has no header.
    """

    closing = "<|call|>"

    def parse(self, text: str) -> ParsedAnswer:
        """Take an answer apart; see `ToolCallParser`."""
        parts = [part for part in _parts(text) if not part.is_thought]
        calls = tuple(_call(part) for part in parts if part.is_call)
        return ParsedAnswer.of(_content(part for part in parts if not part.is_call), calls)

    def call_form(self, tools: Sequence[Schema], *, is_parallel: bool) -> dict[str, Any] | None:
        """Return the form of an answer of one call, which ends the turn in this format; see `ForcesCalls`.

        It ends before `<|call|>`, a stop token of the model's: an engine lets it come where the grammar is complete,
        and nowhere else.
        """
        if not all(_NAME.fullmatch(schema_name(tool)) for tool in tools):
            return None
        return {"type": "or", "elements": [_call_message(tool) for tool in tools]}


def _call_message(tool: Schema) -> dict[str, Any]:
    to = f"to=functions.{schema_name(tool)}"
    begins = _one_of(
        f"{CHANNEL}commentary {to} <|constrain|>json{BODY}",
        f"{CHANNEL}commentary {to}<|constrain|>json{BODY}",
        f" {to}{CHANNEL}commentary <|constrain|>json{BODY}",
        f" {to}{CHANNEL}commentary json{BODY}",
    )
    return {"type": "sequence", "elements": [begins, arguments_form(tool)]}


def _one_of(*texts: str) -> dict[str, Any]:
    return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in texts]}


def with_recipients_first(text: str) -> str:
    """Return an answer with the headers of calls as chat templates write them.

    Models write the channel first and whom it is for behind it, which is the same message.
    """
    return _CALL_HEADER.sub(r" to=\2<|channel|>\1 \3<|message|>", text)


def _parts(text: str) -> Iterator[_Part]:
    """Yield the messages of an answer in their order."""
    for place, piece in enumerate(text.split(START)):
        if not piece:
            continue
        header, has_body, rest = piece.partition(BODY)
        if not has_body and CHANNEL not in piece:
            yield _Part("", "", piece, piece)  # no header at all
            continue
        end = _END.search(rest)
        recipient = _RECIPIENT.search(header)
        channel = header.rpartition(CHANNEL)[2].split() if CHANNEL in header else []
        yield _Part(
            recipient=recipient.group(1) if recipient else "",
            channel=channel[0] if channel else "",
            body=(rest[: end.start()] if end else rest) if has_body else None,
            text=(START if place else "") + piece,
        )


def _content(parts: "Iterator[_Part] | list[_Part]") -> str:
    said = [_MARK.sub("", part.body if part.body is not None else part.text) for part in parts]
    return said[0] if len(said) == 1 else "\n".join(filter(None, map(str.strip, said)))


def _call(part: _Part) -> ToolCall:
    name = part.recipient.removeprefix("functions.")
    if part.body is None:
        return ToolCall(name, {}, f"Nothing was run: the call of {name} has no arguments behind {BODY}.")
    return as_call({"name": name, "arguments": part.body.strip()})
