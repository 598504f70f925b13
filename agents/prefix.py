"""Does a rendered history begin with what the model read and wrote? And if not, why."""

import re
from typing import NamedTuple

from .template import ChatMessage, TemplateShape

_EXCERPT_CHARS = 32


class Reading(NamedTuple):
    """One way to tell a template what was sampled.

    Attributes:
        messages: The assistant message, or nothing where nothing was sampled.
        body: The sampled text without the end of the turn.
        end: The text of the end-of-turn tokens that were sampled; empty where the answer was cut.
    """

    messages: list[ChatMessage]
    body: str
    end: str


NOTHING_SAID = Reading([], "", "")


def end_of_answer(text: str, view: str, reading: Reading) -> int | None:
    """Return where the answer ends in `text` if it begins with `view` and the answer, else None.

    Whitespace that a template trims off an answer is no change of history: the sampled tokens stay.
    """
    if not text.startswith(view):
        return None
    exact = reading.body + reading.end
    if text.startswith(exact, len(view)):
        return len(view) + len(exact)
    stop = _skip_ignoring_whitespace(text, len(view), reading.body)
    if stop is None or not reading.end:
        return stop
    spaces = re.compile(r"\s*").match(text, stop)
    stop = spaces.end() if spaces else stop
    return stop + len(reading.end) if text.startswith(reading.end, stop) else None


def why_rewritten(text: str, view: str, reading: Reading, shape: TemplateShape) -> str:
    """Name what a template changed in a history, with the first characters that differ."""
    kept = view + reading.body + reading.end
    at = _common_length(kept, text)
    if kept.rfind("<", 0, at) > kept.rfind(">", 0, at):
        at = kept.rfind("<", 0, at)  # not from the middle of a tag
    if _is_thought(kept, text, at, shape):
        what = "takes out the thoughts of earlier turns"
    elif at < len(view):
        what = "rewrites what was shown before"
    elif at >= len(view) + len(reading.body):
        what = "ends an earlier answer differently"
    else:
        what = "rewrites an earlier answer"
    return f"the template {what}: {kept[at : at + _EXCERPT_CHARS]!r} became {text[at : at + _EXCERPT_CHARS]!r}"


def _is_thought(kept: str, text: str, at: int, shape: TemplateShape) -> bool:
    """Say whether what differs from `at` on is a thought."""
    marks, openings = shape.thought_marks(), shape.thought_openings()
    begins = any(kept.startswith(mark, at) for mark in marks)
    inside = any(kept[:at].rstrip().endswith(mark) for mark in openings)
    return begins or inside or any(kept.count(mark) > text.count(mark) for mark in marks)


def _skip_ignoring_whitespace(text: str, start: int, body: str) -> int | None:
    """Return where `body` ends in `text` from `start` on, whitespace aside; None where it does not stand there."""
    wanted = "".join(body.split())
    at = 0
    if not wanted:
        return start
    for word in re.compile(r"\S+").finditer(text, start):
        piece = word.group()[: len(wanted) - at]
        if not wanted.startswith(piece, at):
            return None
        at += len(piece)
        if at == len(wanted):
            return word.start() + len(piece)
    return None


def _common_length(left: str, right: str) -> int:
    """Return how many characters two texts share at the beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if right.startswith(left[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low
