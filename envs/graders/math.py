r"""The math grader: a verdict on (response, label) from math-verify in a killable worker, or a typed failure.

Answers that nobody can read are wrong; what this grader cannot decide within its deadline, memory or
number size is a `GraderError`, never a verdict. docs/graders.md says what counts as equal.
"""

import asyncio
import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import DeadlineError, GraderError, WorkerError
from ...sandbox.workers import WorkerPool
from .math_text import Listing, Scalar, clean, compact, final_text, is_readable, last_box, read, split_top

_CHOICE = re.compile(r"\(?([A-J])\)?[.:]?")
_CHOSEN = re.compile(r"\(?([A-J])(?:\)[.:]?(?:\s.*)?|[.:]\s.*|[.:]?)|\(?([a-j])\)?[.:]?")
_CHOICE_LINE = re.compile(r"(?i:answer)(?i:\s+is)?\s*:?\s*[*$\s]*(?:\\text\{)?\(?([A-J])\)?(?![A-Za-z])")
_TEXT_LINE = re.compile(r"(?i:answer)(?:\s+is\s*:?|\s*:)\s*(.+)")
_ANNOUNCED = re.compile(r"^\W*(?i:(?:the )?(?:final )?answer)(?i:\s+is\s*:?|\s*:)\W*?(?=[\w$\\({\[+-])")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_SHORT_WORDS = frozenset(["yes", "no", "odd", "all", "any", "one", "two", "six", "ten", "day", "red"])


@dataclass(frozen=True)
class Verdict:
    """Whether a response is right.

    Attributes:
        is_correct: It is the label's value.
        answer: What was taken from the response as its final answer; None if it holds none.
        how: How that was seen: "same text", "choice", "words", "math", "no answer" or "unreadable".
    """

    is_correct: bool
    answer: str | None
    how: str


def grade(response: str, label: str) -> Verdict:
    """Grade in this process, without any deadline; `MathGrader` runs it in a worker.

    Raises:
        GraderError: There is no verdict: the label is unreadable, or a number too large.
    """
    gold = _gold(label)
    text = final_text(response)
    answer = None if text is None else _answer(text, gold)
    if answer is None:
        return Verdict(False, None, "no answer")
    if not is_readable(answer):
        return Verdict(False, answer, "unreadable")
    cleaned = clean(answer)
    if compact(cleaned) == compact(gold):
        return Verdict(True, answer, "same text")
    if (choice := _choice(gold)) is not None:
        return Verdict(_chosen(cleaned) == choice, answer, "choice")
    if _is_words(gold):
        return Verdict(_words(cleaned) == _words(gold), answer, "words")
    return _grade_math(gold, cleaned, answer)


def check_label(label: str) -> str | None:
    """Say what is wrong with a label before anything is trained on it; None if it can be graded.

    Like `grade` it has no deadline of its own; see `MathGrader.check_label`.
    """
    from .math_parse import TooLargeError, UnreadableError

    if not label.strip():
        return "the label is empty"
    gold = clean(_without_solution(label))
    if not gold:
        return f"the label {label!r} holds no answer"
    if _choice(gold) is not None or _is_words(gold):
        return None
    if _is_prose(gold):
        return (
            f"the label {label!r} mixes prose and mathematics, only {_gold(label)!r} would count; give the answer alone"
        )
    try:
        _parse_all(read(gold))
    except UnreadableError:
        return f"the label {label!r} cannot be parsed; only a response with the same text would count as right"
    except TooLargeError:
        return f"the label {label!r} holds a number too large to be computed"
    return None


class MathGrader:
    """Grades in killable worker processes under a hard deadline; serves any thread and event loop.

    Args:
        deadline_s: Seconds one verdict may take, waiting for a free worker not counted.
        num_workers: Most worker processes; by default up to 4, one per core.
        memory_bytes: What one worker may take beyond its imports.
    """

    def __init__(self, *, deadline_s: float = 5.0, num_workers: int | None = None, memory_bytes: int = 1 << 30) -> None:
        num_workers = num_workers or min(4, len(os.sched_getaffinity(0)))
        self._deadline_s = deadline_s
        self._pool = WorkerPool(f"{__name__}_work:work", num_workers=num_workers, memory_bytes=memory_bytes)

    async def grade(self, response: str, label: str) -> Verdict:
        """Return a verdict.

        Raises:
            GraderError: There is none within the deadline and the memory; not to be read as "wrong".
        """
        return await self._run(grade.__name__, response, label)  # type: ignore[return-value]

    async def check_label(self, label: str) -> str | None:
        """Say what is wrong with a label; None if it can be graded."""
        try:
            return await self._run(check_label.__name__, label)  # type: ignore[return-value]
        except GraderError as error:
            return f"the label {label!r} cannot be graded: {error}"

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    async def _run(self, *args: str) -> object:
        try:
            return await self._pool.run(*args, timeout_s=self._deadline_s)
        except (DeadlineError, WorkerError) as error:
            raise GraderError(f"no verdict: {error}") from error


def check_labels(labels: Iterable[str], deadline_s: float = 5.0) -> dict[int, str]:
    """Check many labels in worker processes, before an event loop runs; return what is wrong by position."""
    grader = MathGrader(deadline_s=deadline_s)

    async def check_all() -> list[str | None]:
        return await asyncio.gather(*map(grader.check_label, labels))

    try:
        problems = asyncio.run(check_all())
    finally:
        grader.close()
    return {index: problem for index, problem in enumerate(problems) if problem}


@functools.cache
def _grader(pid: int, deadline_s: float) -> MathGrader:
    return MathGrader(deadline_s=deadline_s)


def shared_grader(deadline_s: float = 5.0) -> MathGrader:
    """Return this process's grader with that deadline; it lives until the process ends."""
    return _grader(os.getpid(), deadline_s)


def _grade_math(gold: str, cleaned: str, answer: str) -> Verdict:
    from .math_equal import same_answer
    from .math_parse import UnreadableError

    gold_node = read(gold)
    try:
        _parse_all(gold_node)
    except UnreadableError as error:
        raise GraderError(f"the label {gold!r} cannot be parsed, so no answer can be judged by it") from error
    try:
        return Verdict(same_answer(gold_node, read(cleaned)), answer, "math")
    except UnreadableError:
        return Verdict(False, answer, "unreadable")


def _parse_all(node: Scalar | Listing) -> None:
    from .math_parse import parse

    if isinstance(node, Scalar):
        parse(node.text)
    else:
        for item in node.items:
            _parse_all(item)


def _gold(label: str) -> str:
    gold = clean(_without_solution(label))
    if not gold:
        raise GraderError(f"the label {label!r} holds no answer")
    if _is_prose(gold) and not _is_words(gold):
        from .math_parse import final_answer

        return clean(final_answer(label) or gold)
    return gold


def _without_solution(label: str) -> str:
    return label.rpartition("####")[2]  # GSM8K's labels are a solution, then #### and the answer


def _answer(text: str, gold: str) -> str | None:
    r"""Return the last box; without one a short answer as it stands, or what follows "the answer is"."""
    if "\\boxed" in text or "\\fbox" in text:
        box = last_box(text)
        return box if box and box.strip() else None
    text = _BOLD.sub(r"\1", text)
    line = _ANNOUNCED.sub("", _without_solution(text).strip())
    is_text_label = _choice(gold) is not None or _is_words(gold)
    if "\n" not in line and line and (compact(clean(line)) == compact(gold) or not _is_prose(clean(line))):
        return line
    if is_text_label:
        found = list((_CHOICE_LINE if _choice(gold) else _TEXT_LINE).finditer(text))
        return found[-1][1].strip() if found else None
    from .math_parse import final_answer

    return final_answer(text)


def _plain(text: str) -> str:
    r"""Return the text with `\text{}` and its kin dissolved."""
    return re.sub(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text).strip(" $*.")


def _choice(gold: str) -> str | None:
    match = _CHOICE.fullmatch(_plain(gold))
    return match[1] if match else None


def _chosen(answer: str) -> str | None:
    match = _CHOSEN.fullmatch(_plain(answer))
    return (match[1] or match[2]).upper() if match else None


def _is_words(text: str) -> bool:
    """Say whether a label is words to be compared as text: in TeX's text mode, or too wordy for a product."""
    plain = _plain(text)
    if re.search(r"[\\\d=<>^+*/_]", plain) or not re.search(r"[A-Za-z]{2}", plain):
        return False
    words = re.findall(r"[A-Za-z]+", plain)
    return plain != text or any(len(word) > 3 or word.lower() in _SHORT_WORDS for word in words)


def _words(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", _plain(text).lower()).strip()


def _is_prose(text: str) -> bool:
    """Say whether two or more words stand beside each other outside text mode and commands."""
    bare = re.sub(r"\\[A-Za-z]+\s*(?:\{[^{}]*\})?", " ", text)
    return len(split_top(text)) < 20 and len(re.findall(r"(?<![A-Za-z])[A-Za-z]{2,}(?![A-Za-z])", bare)) >= 2
