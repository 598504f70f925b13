"""Which code a model's answer holds."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .math_text import final_text

_OPENING = re.compile(r"( *+)(`{3,}+|~{3,}+) *+([^\s`{]*+)[^`]*+")  # possessive: answers may be hostile
LABELS: dict[str, frozenset[str]] = {
    "python": frozenset({"python", "py", "python3"}),
    "bash": frozenset({"bash", "sh", "shell"}),
    "cpp": frozenset({"cpp", "c++", "cc", "cxx"}),
    "javascript": frozenset({"javascript", "js", "node"}),
}
"""What a block of a language may be labelled as, in lower case."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    label: str
    """The word after the fence in lower case; empty if there is none."""
    code: str
    is_closed: bool

    def is_of(self, language: str) -> bool:
        """Whether it is labelled as that language."""
        return self.label in LABELS.get(language, frozenset({language}))


def fenced_blocks(text: str) -> list[Block]:
    """Return the blocks between fences of three or more backticks or tildes; one without an end goes to the text's.

    A fence ends at one of the same sign, at least as long, with nothing else on its line.
    """
    return [part for part in _parts(text) if isinstance(part, Block)]


def without_code(text: str, language: str = "python") -> str:
    """Return the text without its blocks of a language."""
    kept = [part for part in _parts(text) if not (isinstance(part, Block) and part.is_of(language))]
    return "\n".join(part.code if isinstance(part, Block) else part for part in kept)


def code_blocks(answer: str) -> list[Block]:
    """Return the fenced blocks of an answer, those of its thinking left out."""
    return fenced_blocks(final_text(answer) or "")


def final_code(answer: str, language: str = "python", *, also: Collection[str] = ("",)) -> str | None:
    """Return the code that an answer settles on; None if it holds none.

    Only what follows the model's thinking counts. It is the last block that is labelled with the language; without
    one, the last block whose label is in `also`; and without any fence, the whole text.
    """
    text = final_text(answer)
    if text is None:
        return None
    blocks = fenced_blocks(text)
    found = [block for block in blocks if block.is_of(language)] or [block for block in blocks if block.label in also]
    if found:
        return found[-1].code if found[-1].code.strip() else None
    return text if not blocks and text.strip() else None


def _parts(text: str) -> Iterator[Block | str]:
    """Yield the lines outside of blocks, and the blocks, in order."""
    lines: list[str] = []
    opening: re.Match[str] | None = None
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if opening is None:
            opening = _OPENING.fullmatch(line)
            if opening is None:
                yield line
        elif _closes(line, opening[2]):
            yield _block(opening, lines, is_closed=True)
            opening, lines = None, []
        else:
            lines.append(line)
    if opening is not None:
        yield _block(opening, lines, is_closed=False)


def _closes(line: str, fence: str) -> bool:
    bare = line.strip(" ")
    return len(bare) >= len(fence) and not bare.strip(fence[0])


def _block(opening: re.Match[str], lines: list[str], *, is_closed: bool) -> Block:
    indent = len(opening[1])
    code = "".join(f"{line[min(indent, len(line) - len(line.lstrip(' '))) :]}\n" for line in lines)
    return Block(opening[3].lower(), code, is_closed)
