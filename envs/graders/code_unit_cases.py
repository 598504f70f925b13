"""Runs inside a sandbox beside tests: classes of `unittest`, whose tests are noted one by one."""

import traceback
import unittest
from collections.abc import Callable
from typing import Any  # of what `unittest` calls exc_info


class CaseResult(unittest.TestResult):
    """Notes each test of a class."""

    def __init__(self, finished: Callable[[str, str, str], None]) -> None:
        super().__init__()
        self._finished = finished
        self._text = ""
        self._outcome: str | None = "passed"

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Begin a test."""
        super().startTest(test)
        self._outcome, self._text = "passed", ""

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Note how it went."""
        super().stopTest(test)
        if self._outcome is not None:
            self._finished(str(test), self._outcome, self._text)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Note an exception."""
        self._note("error", err)
        if not isinstance(test, unittest.TestCase):  # setUpClass and its like, where no test starts
            self._finished(str(test), "error", self._text)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Note a failed assertion."""
        self._note("wrong", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Note what failed within a test."""
        if err is not None:
            self._note("wrong" if issubclass(err[0], AssertionError) else "error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Leave it out."""
        self._outcome = None  # it does not count

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        """Note that it should have failed."""
        self._outcome, self._text = "wrong", "an unexpected success"

    def _note(self, outcome: str, err: Any) -> None:
        self._outcome, self._text = outcome, "".join(traceback.format_exception(*err))


def run_of_class(thing: object, finished: Callable[[str, str, str], None]) -> Callable[[], object] | None:
    """Return what runs the tests of a class of the test file; None if the thing is no such class."""
    if not (isinstance(thing, type) and issubclass(thing, unittest.TestCase) and thing.__module__ == "tests"):
        return None
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(thing)
    return lambda: suite.run(CaseResult(finished))
