"""What the tests' side of a test file writes between two cells, and the verdict that comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from ...sandbox.results import CellResult
from .code import CodeVerdict, Outcome, first_failure
from .code_unit_solution import MARK
from .code_values import decode


@dataclass(frozen=True)
class TestResult:
    """How one test ended."""

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Event:
    """Where the tests have come to."""

    kind: str
    """They call the program, are done, or cannot be run (fault)."""
    payload: bytes
    """What the program is to do, or what the fault is."""
    results: tuple[TestResult, ...]
    """Of the tests that have ended."""


def read_event(ran: CellResult) -> Event | None:
    """Return what was written last; None if it came to no call and no end."""
    if ran.ended != "ok" or MARK not in ran.out:
        return None
    try:
        event: Any = decode(ran.out.rpartition(MARK)[2])  # Any: checked below
        kind, payload, results = event
        known = [TestResult(str(name), how, str(text)) for name, how, text in results if how in get_args(Outcome)]
    except (TypeError, ValueError):
        return None
    return Event(kind, payload, tuple(known)) if len(known) == len(results) else None


def verdict(results: Sequence[TestResult], wall_s: float, tier: str) -> CodeVerdict:
    """Return the verdict on these tests."""
    outcomes = tuple(result.outcome for result in results)
    failures = [None if r.outcome == "passed" else f"{r.name}: {r.text or r.outcome}" for r in results]
    return CodeVerdict(outcomes, first_failure(outcomes, failures), wall_s, tier)
