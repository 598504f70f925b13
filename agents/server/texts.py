"""Which turn a raw prompt goes on from: the longest context known that it begins with."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from .answers import Read
from .tree import Node

_Prompt = str | NDArray[np.int32]


class KnownTexts:
    """All that a session's turns read and wrote, as token ids and, where it was asked so, as text."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[bool, int, bytes], list[Node]] = {}
        self._lengths: dict[bool, set[int]] = {False: set(), True: set()}

    def add(self, whole: _Prompt, node: Node) -> None:
        """Remember a context with its answer."""
        is_text, length = isinstance(whole, str), len(whole)
        self._lengths[is_text].add(length)
        self._nodes.setdefault((is_text, length, _digest(whole)), []).append(node)

    def add_told(self, prompt: str, read: Read, raw: str, body: str, node: Node) -> None:
        """Remember a prompt with what a client was told of its answer, which lacks what ended it.

        Who goes on from it by text may write that, too: the end of the turn, or the stop string. It has been sampled,
        so it is not shown again. The prompt alone remains one that nobody has answered: it may be asked again.

        Args:
            prompt: What the client asked.
            read: What it was told.
            raw: All that was sampled, special tokens included.
            body: The same without those at its end.
            node: The answer's.
        """
        stop = read.stop if read.stop and read.stop in body else ""
        hidden = raw[body.find(stop) if stop else len(body) :]
        for ending in {"", stop, hidden}:
            if read.content or ending:
                self.add(prompt + read.content + ending, node)

    def find(self, prompt: _Prompt) -> tuple[Node | None, int]:
        """Return the turn that holds most of a prompt, and how much; one that nobody went on from first."""
        is_text = isinstance(prompt, str)
        found: tuple[Node | None, int] = None, 0
        read, digest = 0, blake2b(digest_size=16)
        for length in sorted(each for each in self._lengths[is_text] if each <= len(prompt)):
            digest.update(_bytes(prompt[read:length]))  # each part of the prompt is read once
            read = length
            nodes = self._nodes.get((is_text, length, digest.digest()))
            if nodes:
                found = min(nodes, key=lambda node: (node.is_taken, node.number)), length
        return found


def _digest(prompt: _Prompt) -> bytes:
    return blake2b(_bytes(prompt), digest_size=16).digest()


def _bytes(prompt: _Prompt) -> bytes:
    return prompt.encode() if isinstance(prompt, str) else np.ascontiguousarray(prompt, np.int32).tobytes()
