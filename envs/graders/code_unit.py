"""Test files: the tests run in one sandbox, the program in another; calls are carried between them as plain data.

So the program can read neither the tests nor what they expect, and the tests never hold an object of its making.
"""

from dataclasses import dataclass
from typing import Any, get_args

from ...errors import ConfigError, GraderError, SandboxDeadError
from ...sandbox.base import Session
from ...sandbox.results import CellEnded, CellResult
from .code import (
    CodeTests,
    CodeVerdict,
    Grading,
    Outcome,
    check_source,
    cut,
    first_failure,
    grader_files,
    require_python,
)
from .code_unit_solution import MARK
from .code_values import decode, encode

_MODULES = ("code_calls_driver", "code_unit_solution", "code_unit_replies", "code_unit_cases", "code_unit_driver")
_PATH = "import sys; sys.path.insert(0, '.')\n"
_START_PROGRAM = f"{_PATH}from grading.code_unit_solution import start, call\nstart()"
_MAX_REPLY_BYTES = 512 << 10
_MOST_DEATHS = 3  # of one program; then it is not started for further tests
_MIN_TESTS_S = 1.0  # what the tests get to end in, when the time is up
_OUTCOME_OF_CELL: dict[CellEnded, Outcome] = {
    "error": "exited",
    "interrupted": "timeout",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
    "exited": "exited",
}


@dataclass(frozen=True)
class UnitTests(CodeTests):
    """A file of tests: classes of `unittest`, functions `test_...`, a function `check(candidate)`, or bare assertions.

    It finds the program's functions in a module `solution`, the entry point also under its own name. Only functions
    can be called, with plain data; lists, dicts and sets that they change in place are changed in the test too, and
    what they raise is raised in the test as the built-in exception that it is or extends.
    """

    source: str
    entry_point: str | None = None
    prelude: str = ""
    """Code that is run before the program and, for itself, before the tests."""

    def __post_init__(self) -> None:
        check_source(self.source, "the test file")
        check_source(self.prelude, "the prelude")

    @property
    def num_tests(self) -> int | None:
        """Not known before they are run."""
        return None

    def first(self, num_tests: int) -> "UnitTests":
        """Refuse."""
        raise ConfigError("a test file cannot be taken apart; give public tests of their own")

    async def _grade(self, code: str, grading: Grading) -> CodeVerdict:
        require_python(grading)
        files = {"tests.py": self.source.encode(), "prelude.py": self.prelude.encode(), **grader_files(*_MODULES)}
        program = _Program(code, self.prelude, grading)
        tests = await grading.sandbox.open_session(
            files=files, limits=grading.limits(grading.test_s, 2 * _MAX_REPLY_BYTES)
        )
        try:
            return await self._run(tests, program, _Clock(grading), grading)
        finally:
            try:
                await program.close()
            finally:
                await tests.close()

    async def _run(self, tests: Session, program: "_Program", clock: "_Clock", grading: Grading) -> CodeVerdict:
        results: list[tuple[str, Outcome, str]] = []
        cell = f"{_PATH}from grading.code_unit_driver import start, answer\nstart({self.entry_point!r})"
        while True:
            ran = await tests.run_cell(cell, timeout_s=max(clock.left_s, _MIN_TESTS_S))
            clock.spend(ran.wall_s)
            event = _event(ran)
            if event is None or event[0] == "fault":
                why = event[1].decode(errors="replace") if event else f"they ended as {ran.ended!r}: {ran.error}"
                if event or not program.num_calls:
                    raise GraderError(f"the tests cannot be run: {cut(why, 1000)}")
                results.append(("the tests", _OUTCOME_OF_CELL.get(ran.ended, "exited"), cut(why)))
                return _verdict(results, clock.total_s, ran.tier)
            kind, payload, so_far = event
            if len(so_far) > len(results):
                clock.next_test()
                results = so_far
            has_failed = any(outcome != "passed" for _, outcome, _ in results)
            if kind == "done" or (has_failed and grading.stops_early):
                return _verdict(results, clock.total_s, ran.tier)
            cell = "answer({!r}, {!r})".format(*await program.call(payload, clock))


class _Clock:
    """How much time is left to the running test, and to all."""

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._test_s = 0.0
        self.total_s = 0.0

    @property
    def left_s(self) -> float:
        return min(self._grading.test_s - self._test_s, self._grading.total_s - self.total_s)

    def spend(self, seconds: float) -> None:
        self._test_s += seconds
        self.total_s += seconds

    def next_test(self) -> None:
        self._test_s = 0.0


class _Program:
    """The program in a session of its own, begun at the first call and anew after a death."""

    def __init__(self, code: str, prelude: str, grading: Grading) -> None:
        self._files = {"solution.py": code.encode(), "prelude.py": prelude.encode()}
        self._grading = grading
        self._session: Session | None = None
        self._num_deaths = 0
        self._failure: tuple[str, bytes] | None = None  # of every further call
        self.num_calls = 0

    async def call(self, request: bytes, clock: _Clock) -> tuple[str, bytes]:
        """Call one of its functions; return a kind and a payload for the tests."""
        self.num_calls += 1
        if len(request) > _MAX_REPLY_BYTES:
            if self.num_calls > 1:  # an earlier result may have made it so long
                return _failed("output", "the tests would pass far too long a value")
            raise GraderError(f"the tests pass {len(request):,} bytes to a function, more than {_MAX_REPLY_BYTES:,}")
        if self._failure is not None:
            return self._failure
        if self._session is None:
            files = {**self._files, **grader_files(*_MODULES[:2])}
            limits = self._grading.limits(self._grading.test_s, 2 * _MAX_REPLY_BYTES)
            self._session = await self._grading.sandbox.open_session(files=files, limits=limits)
            loaded = await self._run_cell(self._session, _START_PROGRAM, clock)
            if loaded[0] != "value":
                self._failure = loaded
                return loaded
        return await self._run_cell(self._session, f"call({request!r})", clock)

    async def close(self) -> None:
        """End its session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _run_cell(self, session: Session, code: str, clock: _Clock) -> tuple[str, bytes]:
        if clock.left_s <= 0:
            return _failed("timeout", "it took too long")
        try:
            ran = await session.run_cell(code, timeout_s=clock.left_s)
        except SandboxDeadError:  # something that it left behind ended its interpreter, between two calls
            return await self._died("exited", "its interpreter is gone")
        clock.spend(ran.wall_s)
        if ran.ended != "ok" or not ran.is_alive:
            return await self._died(_OUTCOME_OF_CELL.get(ran.ended, "exited"), f"the program ended as {ran.ended!r}")
        return _reply(ran)

    async def _died(self, outcome: Outcome, text: str) -> tuple[str, bytes]:
        self._num_deaths += 1
        failure = _failed(outcome, text)
        if self._num_deaths >= _MOST_DEATHS:
            self._failure = failure
        await self.close()
        return failure


def _failed(outcome: Outcome, text: str) -> tuple[str, bytes]:
    return "failed", encode((outcome, text))


def _reply(ran: CellResult) -> tuple[str, bytes]:
    """Return what the program's side wrote; whatever it is, it cannot say that a test passed."""
    try:
        reply: Any = decode(ran.out.rpartition(MARK)[2], max_values=3)
        kind, payload = reply
        if kind in ("value", "raised") and type(payload) is bytes:
            if len(payload) > _MAX_REPLY_BYTES:
                return _failed("output", "the result is too long to be carried to the tests")
            return kind, payload
        failure: Any = decode(payload, max_values=3)
        outcome, text = failure
        if kind == "failed" and outcome in ("error", "not data") and type(text) is str:
            return _failed(outcome, text)
    except (TypeError, ValueError):
        if ran.is_out_truncated:
            return _failed("output", "it wrote too much")
    return _failed("forged", "a reply that cannot be read")


def _event(ran: CellResult) -> tuple[str, bytes, list[tuple[str, Outcome, str]]] | None:
    """Return what the tests' side wrote; None if it came to no call and no end."""
    if ran.ended != "ok" or MARK not in ran.out:
        return None
    try:
        event: Any = decode(ran.out.rpartition(MARK)[2])
        kind, payload, results = event
        known = [(str(name), outcome, str(text)) for name, outcome, text in results if outcome in get_args(Outcome)]
    except (TypeError, ValueError):
        return None
    return (kind, payload, known) if len(known) == len(results) else None


def _verdict(results: list[tuple[str, Outcome, str]], wall_s: float, tier: str) -> CodeVerdict:
    outcomes = tuple(outcome for _, outcome, _ in results)
    failures = [None if outcome == "passed" else f"{name}: {text or outcome}" for name, outcome, text in results]
    return CodeVerdict(outcomes, first_failure(outcomes, failures), wall_s, tier)
