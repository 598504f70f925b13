"""Tests that call a function: arguments go into the sandbox, results come out and are compared here."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import ConfigError
from ...sandbox.results import ExecResult
from .code import (
    OUTCOME_OF_END,
    CodeTests,
    CodeVerdict,
    Grading,
    Outcome,
    check_source,
    cut,
    first_failure,
    grader_files,
    require_python,
    shown,
)
from .code_compare import Comparison, same_value
from .code_values import decode, decode_all, encode

_PROGRAM = "import sys; sys.path.insert(0, '.'); from grading.code_calls_driver import main; main()"
_SLACK_BYTES = 16 << 10  # for a reply that is right: the same value in a longer form; for a message
_SAME_IN_LONGER_FORM = 16  # a whole number written as a float
_LOADING = -1  # the place of what went wrong before any call
_SAID: dict[str, Outcome] = {
    "value": "passed",  # or wrong, as the comparison has it
    "error": "error",
    "not data": "not data",
    "exited": "exited",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
}
_FORGED = "the replies cannot be read"
_WHAT = {
    "exited": "the process ended before it returned",
    "timeout": "it took too long",
    "output": "the result is far longer than the right one",
}


@dataclass(frozen=True)
class Call:
    """One call and what it must return; all plain data."""

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    or_expected: tuple[Any, ...] = ()
    """What would be right too."""


@dataclass(frozen=True)
class CallTests(CodeTests):
    """Calls of one function, or of a method of a class `Solution`.

    Each runs in a fork of a process that has loaded the program, so none sees what another one did.

    Raises:
        ConfigError: There are no calls.
        TypeError: Something in them is no plain data.
        ValueError: Something is nested too deeply.
    """

    entry_point: str
    calls: tuple[Call, ...]
    comparison: Comparison = field(default_factory=Comparison)
    prelude: str = ""
    """Code that is run before the program, in the same module: imports that it may rely on."""

    def __post_init__(self) -> None:
        if not self.calls:
            raise ConfigError("wanted at least one call to test")
        check_source(self.prelude, "the prelude")
        encode([(call.args, dict(call.kwargs), call.expected, call.or_expected) for call in self.calls])

    @property
    def num_tests(self) -> int:
        """How many there are."""
        return len(self.calls)

    def first(self, num_tests: int) -> "CallTests":
        """Return the first of them."""
        return replace(self, calls=self.calls[:num_tests])

    async def _grade(self, code: str, grading: Grading) -> CodeVerdict:
        require_python(grading)
        sizes = [_SLACK_BYTES + _SAME_IN_LONGER_FORM * len(encode(call.expected)) for call in self.calls]
        request = {
            "entry_point": self.entry_point,
            "calls": [([*call.args], dict(call.kwargs)) for call in self.calls],
            "test_s": grading.test_s,
            "max_reply_bytes": max(sizes),
            "stops_early": grading.stops_early,
        }
        files = {"prelude.py": self.prelude.encode(), "solution.py": code.encode(), **grader_files("code_calls_driver")}
        result = await grading.sandbox.run(
            _PROGRAM,
            stdin=encode(request),
            files=files,
            limits=grading.limits(min(grading.total_s, grading.test_s * (len(self.calls) + 1)), sum(sizes)),
        )
        # Replies may be large, and the event loop must go on.
        return await asyncio.to_thread(self._verdict, result, grading.stops_early)

    def _verdict(self, result: ExecResult, stops_early: bool) -> CodeVerdict:
        replies = _replies(result, len(self.calls))
        if replies is None:
            forged: Outcome = "forged"
            why = f"{_FORGED}; descriptors other than 0, 1 and 2 are not the program's"
            return CodeVerdict((forged,) * len(self.calls), why, result.wall_s, result.tier)
        loading = replies.pop(_LOADING, None)
        has_stopped = stops_early and any(kind != "value" for kind, _ in replies.values())
        missing: tuple[Outcome, str | None] = (
            ("not run", None)
            if has_stopped
            else (OUTCOME_OF_END[result.ended], f"no result: the program ended as {result.ended!r}")
        )
        judged = [
            self._judge(call, *reply) if (reply := replies.get(index, loading)) is not None else missing
            for index, call in enumerate(self.calls)
        ]
        outcomes = tuple(outcome for outcome, _ in judged)
        failures = [why and f"{self._spelled(call)}: {why}" for call, (_, why) in zip(self.calls, judged, strict=True)]
        return CodeVerdict(outcomes, first_failure(outcomes, failures), result.wall_s, result.tier)

    def _judge(self, call: Call, kind: str, payload: bytes) -> tuple[Outcome, str | None]:
        if kind == "value":
            return self._compare(call, payload)
        return _SAID[kind], cut(payload.decode(errors="replace")) or _WHAT.get(kind, kind)

    def _compare(self, call: Call, payload: bytes) -> tuple[Outcome, str | None]:
        try:
            value = decode(payload)
        except ValueError as error:
            return "forged", f"{_FORGED}: {error}"
        if any(same_value(value, wanted, self.comparison) for wanted in (call.expected, *call.or_expected)):
            return "passed", None
        return "wrong", f"wanted {shown(call.expected)}, got {shown(value)}"

    def _spelled(self, call: Call) -> str:
        words = [shown(value) for value in call.args] + [f"{key}={shown(value)}" for key, value in call.kwargs.items()]
        return cut(f"{self.entry_point}({', '.join(words)})")


def _replies(result: ExecResult, num_calls: int) -> dict[int, tuple[str, bytes]] | None:
    """Return kind and payload by the number of the call; None if no honest program writes such a thing."""
    frames, is_whole = decode_all(result.out)
    replies: dict[int, tuple[str, bytes]] = {}
    for frame in frames:
        match frame:
            case (int(index), str(kind), bytes(payload)) if kind in _SAID and _LOADING <= index < num_calls:
                if index in replies or (index == _LOADING and kind != "error"):
                    return None
                replies[index] = (kind, payload)
            case _:
                return None
    # A limit or a crash may cut the last reply short.
    return replies if is_whole or result.is_out_truncated or result.ended not in ("ok", "nonzero") else None
