"""The tree of a session's turns: which of them a request goes on from."""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...envs.messages import Message, RawText
from ...errors import TrajectoryError
from ..base import Completion, Sampling
from ..conversation import ChatConversation
from ..images import Images, fingerprint
from .canonical import Form
from .history import Branch, Given

Shown = list[Message] | RawText | NDArray[np.int32]
"""What came before an answer: messages, text, or token ids."""


@dataclass(frozen=True)
class Turn:
    """What is needed to have a turn again.

    Attributes:
        number: Its place among the answers of the session.
        shown: What came after the turn before.
        checksum: Of the prompt's token ids and images, as the engine got them.
        completion: What was sampled.
        sampling: How.
    """

    number: int
    shown: Shown
    checksum: int
    completion: Completion
    sampling: Sampling


@dataclass(eq=False)
class Node:
    """A conversation behind an answer, or before the first.

    Only ends of branches and places where branches part keep their conversation, so that memory does not grow with the
    square of a conversation's length; others have it again by going through their turns again.
    """

    turn: Turn | None
    parent: "Node | None" = None
    problems: list[Message] = field(default_factory=list)  # of calls that nobody could read; the model is told next
    conversation: ChatConversation | None = None
    given: Given | None = None  # what the client was given, where it asked with messages
    num_messages: int = 0  # up to and with the answer
    children: list["Node"] = field(default_factory=list)
    num_running: int = 0  # requests that go on from here
    _lengths: set[int] = field(default_factory=set)
    _known: dict[tuple[Form, Form], list["Node"]] = field(default_factory=dict)

    def add(self, child: "Node", shown: Sequence[Form], answers: Sequence[Form]) -> None:
        """Add what a request came to: the forms of what it showed, and those in which its answer may come back."""
        self._lengths.add(len(shown))
        for answer in dict.fromkeys(answers):
            self._known.setdefault((b"".join(shown), answer), []).append(child)
        if not self.children and self.parent is not None:
            self.conversation = None
        self.children.append(child)

    def find(self, forms: Sequence[Form]) -> tuple["Node", int]:
        """Return the node below that holds most of these messages, and how many; one that nobody went on from first."""
        best, held = self, 0
        open_nodes = [(self, 0)]
        while open_nodes:
            node, place = open_nodes.pop()
            if (place, not node.is_taken, -node.number) > (held, not best.is_taken, -best.number):
                best, held = node, place
            for stop in (place + length for length in node._lengths):
                if stop < len(forms):
                    answered = node._known.get((b"".join(forms[place:stop]), forms[stop]), ())
                    open_nodes += [(child, stop + 1) for child in answered]
        return best, held

    @property
    def number(self) -> int:
        """The number of its turn; -1 before the first."""
        return -1 if self.turn is None else self.turn.number

    @property
    def is_taken(self) -> bool:
        """Whether some request goes on from here, or did."""
        return bool(self.children) or self.num_running > 0

    def known_in(self, messages: Sequence[Message]) -> Iterator[tuple[Given, Message]]:
        """Yield each answer up to here, the last one first, and the message that it came back as."""
        node: Node | None = self
        while node is not None:
            if node.given is not None:
                yield node.given, messages[node.num_messages - 1]
            node = node.parent

    def path(self) -> list[Turn]:
        """Return its turns from the first on."""
        turns: list[Turn] = []
        node: Node | None = self
        while node is not None and node.turn is not None:
            turns.append(node.turn)
            node = node.parent
        return turns[::-1]

    def leaves(self) -> Iterator["Node"]:
        """Yield the ends of all branches, those that began earlier first."""
        stack: list[Node] = [self]
        while stack:
            node = stack.pop()
            if not node.children and node.turn is not None:
                yield node
            stack.extend(reversed(node.children))

    def fork(self) -> ChatConversation:
        """Return a conversation that goes on from here."""
        if self.conversation is None:
            assert self.parent is not None  # a root keeps its conversation
            assert self.turn is not None
            self.conversation = self.parent._forked_for(self.turn)
        return self.conversation.fork()

    def _forked_for(self, turn: Turn) -> ChatConversation:
        missing = [turn]
        node: Node = self
        while node.conversation is None:
            assert node.parent is not None
            assert node.turn is not None
            missing.append(node.turn)
            node = node.parent
        conversation = node.conversation.fork()
        for each in reversed(missing):
            show(conversation, each.shown)
            if checksum(conversation.prompt_ids(), conversation.prompt_images()) != each.checksum:
                raise TrajectoryError(
                    f"turn {each.number} has another prompt when it is rendered again than the engine was given; "
                    "does the chat template show something that changes?"
                )
            conversation.record(each.completion, each.sampling)
        return conversation


def show(conversation: ChatConversation, shown: Shown) -> None:
    """Append what a request shows."""
    if isinstance(shown, np.ndarray):
        conversation.observe_tokens(shown)
    else:
        conversation.observe(shown)


def checksum(token_ids: NDArray[np.int32], images: Images) -> int:
    """Return a number that tells prompts apart."""
    return zlib.crc32(fingerprint(token_ids, images))


def branch_of(
    roots: Iterable[Node], node: Node, messages: Sequence[Message] = (), forms: Sequence[Form] = (), held: int = 0
) -> Branch | None:
    """Say why a request begins a branch; None where it begins none.

    Args:
        roots: Of all that the session knows, one for each set of tools.
        node: Where the request goes on.
        messages: What it holds; nothing where it holds a text.
        forms: Theirs.
        held: How many of its messages the node has.
    """
    roots = list(roots)
    is_first = not any(root.is_taken for root in roots)
    if is_first or (node.turn is not None and not node.is_taken):
        return None
    if any(message["role"] == "assistant" for message in messages[held:]):
        is_known = any(root.find(forms)[1] > held for root in roots)
        return Branch.TOOLS if is_known else Branch.EDITED
    return Branch.NEW if node.turn is None else Branch.REPEATED
