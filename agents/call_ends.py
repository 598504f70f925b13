"""Where the calls of an answer end: what a model writes behind them it wrote without having seen what came of them."""

import re
from bisect import bisect_left
from dataclasses import replace

from .answer_reader import AnswerReader, ReadAnswer
from .base import Completion, StopReason, TopLogprobs
from .tokenizer import Codec


def stop_mark(reader: AnswerReader) -> str | None:
    """Return the string that ends an answer at its first call; None where none does without harm.

    A model that thinks may write the mark in a thought, where it ends no call.
    """
    return None if reader.may_think else reader.closing or None


def end_of_calls(reader: AnswerReader, text: str) -> int:
    """Return where the last call of an answer ends; its length where nothing stands behind it, or nobody knows.

    That is the shortest beginning in which the same calls are read, up to a mark that closes one.
    """
    mark = reader.closing
    if mark is None or (mark and (mark not in text or (text.count(mark) == 1 and text.rstrip().endswith(mark)))):
        return len(text)
    wanted = _count(reader.read(text))
    if wanted[0] == 0 or (not mark and wanted[1] > 0):  # what cannot be read has no end but its mark
        return len(text)
    ends = [found.end() for found in re.finditer(re.escape(mark), text)] if mark else range(1, len(text) + 1)
    place = bisect_left(ends, True, key=lambda end: _count(reader.read(text[:end])) == wanted)
    end = ends[place] if place < len(ends) else len(text)
    return end if text[end:].strip() else len(text)


def up_to(completion: Completion, codec: Codec, text: str, end: int) -> Completion:
    """Return the fewest tokens that say a text up to `end`, as they were sampled; the last may say more.

    Args:
        completion: What was sampled.
        codec: Of the model.
        text: What it begins with.
        end: A place in the text.
    """
    ids = completion.token_ids
    count = bisect_left(range(len(ids)), end, key=lambda length: len(codec.decode(ids[:length])))
    if not codec.decode(ids[:count]).startswith(text[:end]):
        return completion  # some tokens say something else together than one by one
    top = completion.top
    return replace(
        completion,
        token_ids=ids[:count],
        logprobs=None if completion.logprobs is None else completion.logprobs[:count],
        versions=completion.versions[:count],
        stop_reason=StopReason.STOP,
        top=None if top is None else TopLogprobs(top.token_ids[:count], top.logprobs[:count]),
    )


def _count(read: ReadAnswer) -> tuple[int, int]:
    """Count the calls, and those that cannot be made."""
    return len(read.calls), sum(call.problem is not None for call in read.calls)
