"""Test files: the tests run in one sandbox, the program in another; what tests do with the program is carried over.

So the program can read neither the tests nor what they expect, and the tests never hold an object of its making, but
plain data and handles of objects that stay where the program is.
"""

from dataclasses import dataclass

from ...errors import ConfigError, GraderError
from ...sandbox.base import Session
from .code import CodeTests, CodeVerdict, Grading, check_source, cut, grader_files, require_python
from .code_unit_program import MAX_REPLY_BYTES, OUTCOME_OF_CELL, PATH, PROGRAM_MODULES, Clock, Program
from .code_unit_results import TestResult, read_event, verdict

_MODULES = (*PROGRAM_MODULES, "code_unit_objects", "code_unit_cases", "code_unit_driver")
_MIN_TESTS_S = 1.0  # what the tests get to end in, when the time is up


@dataclass(frozen=True)
class UnitTests(CodeTests):
    """A file of tests: classes of `unittest`, functions `test_...`, a function `check(candidate)`, or bare assertions.

    It finds the program's functions and classes in a module `solution`, the entry point also under its own name. Lists,
    dicts and sets that they change in place are changed in the test too, and what they raise is raised in the test as
    the built-in exception that it is or extends. If the tests name a class, objects of the program may come back and be
    passed on; docs/graders.md says what a test can do with them.
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
        program = Program(code, self.prelude, grading)
        tests = await grading.sandbox.open_session(
            files=files, limits=grading.limits(grading.test_s, 2 * MAX_REPLY_BYTES)
        )
        try:
            return await self._run(tests, program, Clock(grading), grading)
        finally:
            try:
                await program.close()
            finally:
                await tests.close()

    async def _run(self, tests: Session, program: Program, clock: "Clock", grading: Grading) -> CodeVerdict:
        results: tuple[TestResult, ...] = ()
        cell = f"{PATH}from grading.code_unit_driver import start, answer\nstart({self.entry_point!r})"
        while True:
            ran = await tests.run_cell(cell, timeout_s=max(clock.left_s, _MIN_TESTS_S))
            clock.spend(ran.wall_s)
            event = read_event(ran)
            if event is None or event.kind == "fault":
                why = event.payload.decode(errors="replace") if event else f"they ended as {ran.ended!r}: {ran.error}"
                if event or not program.num_calls:
                    raise GraderError(f"the tests cannot be run: {cut(why, 1000)}")
                jammed = TestResult("the tests", OUTCOME_OF_CELL.get(ran.ended, "exited"), cut(why))
                return verdict((*results, jammed), clock.total_s, ran.tier)
            if len(event.results) > len(results):
                clock.next_test()
                results = event.results
            has_failed = any(result.outcome != "passed" for result in results)
            if event.kind == "done" or (has_failed and grading.stops_early):
                return verdict(results, clock.total_s, ran.tier)
            cell = "answer({!r}, {!r})".format(*await program.perform(event.payload, clock))
