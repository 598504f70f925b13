r"""Stands in for `openrlhf.utils`: the two functions that its reward files grade boxed answers with.

They are those of this project's math grader: what it cannot decide raises, and is no answer that is wrong.
"""

from functools import cache

from ..graders.math import Verdict, shared_grader
from ..graders.math_text import last_box
from ..loop_thread import LoopThread

__all__ = ["extract_boxed_answer", "grade_answer"]

_TIMEOUT_S = 60.0  # also the wait for a free worker; a verdict has a deadline of its own


def extract_boxed_answer(solution: str) -> str | None:
    r"""Return what the last \boxed{} of a text holds; None without one."""
    return last_box(solution)


def grade_answer(given_answer: str | None, ground_truth: str) -> bool:
    """Say whether two answers are the same value; blocks, for at most the grader's deadline.

    Raises:
        GraderError: There is no verdict.
    """
    if given_answer is None:
        return False

    async def grade() -> Verdict:
        return await shared_grader().grade(f"\\boxed{{{given_answer}}}", str(ground_truth))

    return _loop().run(grade(), timeout_s=_TIMEOUT_S, what="grading an answer").is_correct


@cache
def _loop() -> LoopThread:
    return LoopThread("turngym-grade-answer")
