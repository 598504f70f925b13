"""How histories came back from clients: which answers were changed and known all the same, and what branched."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...envs.messages import Message
from .answers import AnswerCall, as_json


class Change(StrEnum):
    """What a client made of an answer before it sent it back; the tokens are those that were sampled all the same."""

    THOUGHTS_DROPPED = "thoughts_dropped"
    THOUGHTS_EDITED = "thoughts_edited"
    REWRITTEN = "rewritten"  # whitespace, the order of keys in arguments, text left out beside calls


class Branch(StrEnum):
    """Why a request began a branch."""

    EDITED = "branches_edited"  # it holds an answer that was not given here, or not so: edited, summarised
    REPEATED = "branches_repeated"  # another request went on from the same turn before
    NEW = "branches_new"  # it begins another conversation, as sub-agents do
    TOOLS = "branches_tools"  # its history is known, but with other tools, which stand in the prompt
    CHOICES = "branches_choices"  # a further answer, of those that `n` asks for


_CONTINUED = "continued"
_NAMES = (_CONTINUED, *(each.value for each in (*Change, *Branch)))


@dataclass(eq=False)
class Given:
    """An answer as a client was given it.

    Attributes:
        content: Its text, without thoughts and calls.
        thought: What it thought.
        calls: Those that can be made.
        raw: All of it as the model wrote it, in which form it may come back as well.
    """

    content: str
    thought: str | None
    calls: tuple[AnswerCall, ...]
    raw: str
    _last: tuple[Message, frozenset[Change]] | None = None  # it comes back with each request, mostly the same object

    def changes_in(self, message: Message) -> frozenset[Change]:
        """Return what is different in the answer as it came back."""
        if self._last is None or self._last[0] is not message:
            self._last = message, self._changes_in(message)
        return self._last[1]

    def _changes_in(self, message: Message) -> frozenset[Change]:
        content = message["content"] if isinstance(message["content"], str) else ""
        calls = message.get("tool_calls") or []
        if not calls and content != self.content and _is_same(content, self.raw):
            return frozenset() if content == self.raw else frozenset({Change.REWRITTEN})
        found: set[Change] = set()
        thought = str(message.get("reasoning_content") or "")
        if not thought and self.thought:
            found.add(Change.THOUGHTS_DROPPED)
        elif not _is_same(thought, self.thought or ""):
            found.add(Change.THOUGHTS_EDITED)
        arguments = [_as_text(call["function"]["arguments"]) for call in calls]
        if content != self.content or arguments != [call.arguments for call in self.calls]:
            found.add(Change.REWRITTEN)
        return frozenset(found)


class History:
    """Counts the answered requests of one session by how their histories came back."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_NAMES, 0))

    @property
    def counts(self) -> Mapping[str, int]:
        """By the names of `Change` and `Branch`, and `continued`; those that are 0 as well."""
        return dict(self._counts)

    def add(self, known: Sequence[tuple[Given, Message]], *, is_continued: bool, branch: Branch | None, n: int) -> None:
        """Count a request that was answered.

        Args:
            known: The answers of its history whose tokens it goes on from, and the messages that they came back as.
            is_continued: Whether it goes on from recorded tokens.
            branch: Why it began a branch; None where it began none.
            n: How many answers it got.
        """
        self._counts.update(self._of(known, is_continued, branch))
        self._counts[Branch.CHOICES] += n - 1

    def _of(self, known: Sequence[tuple[Given, Message]], is_continued: bool, branch: Branch | None) -> Iterator[str]:
        if is_continued:
            yield _CONTINUED
        if branch is not None:
            yield branch
        yield from {change for given, message in known for change in given.changes_in(message)}


def _as_text(arguments: Any) -> str:  # Any: they are JSON, or what a client has in place of it
    return arguments if isinstance(arguments, str) else as_json(arguments)


def _is_same(text: str, other: str) -> bool:
    return text == other or text.split() == other.split()
