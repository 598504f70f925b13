"""The program under test, in a session of its own, and the time that it may take."""

from typing import Any  # of a reply, whose form the program chose

from ...errors import GraderError, SandboxDeadError
from ...sandbox.base import Session
from ...sandbox.results import CellEnded, CellResult
from .code import Grading, Outcome, grader_files
from .code_unit_solution import MARK
from .code_values import decode, encode

PROGRAM_MODULES = ("code_calls_driver", "code_unit_replies", "code_unit_solution")
"""What runs beside it."""
PATH = "import sys; sys.path.insert(0, '.')\n"
"""Begins a session's first cell."""
MAX_REPLY_BYTES = 512 << 10
OUTCOME_OF_CELL: dict[CellEnded, Outcome] = {
    "error": "exited",
    "interrupted": "timeout",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
    "exited": "exited",
}
"""What a call came to whose cell did not end as ok."""
_START = f"{PATH}from grading.code_unit_solution import start, perform\nstart({{}})"
_MOST_DEATHS = 3  # of one program; then it is not started for further tests


class Clock:
    """How much time is left to the running test, and to all."""

    def __init__(self, grading: Grading) -> None:
        self._grading = grading
        self._test_s = 0.0
        self.total_s = 0.0

    @property
    def left_s(self) -> float:
        """What is left to the running test."""
        return min(self._grading.test_s - self._test_s, self._grading.total_s - self.total_s)

    def spend(self, seconds: float) -> None:
        """Count what was used."""
        self._test_s += seconds
        self.total_s += seconds

    def next_test(self) -> None:
        """Begin a test."""
        self._test_s = 0.0


class Program:
    """The program in a session of its own, begun at the first call and anew after a death."""

    def __init__(self, code: str, prelude: str, grading: Grading) -> None:
        self._files = {"solution.py": code.encode(), "prelude.py": prelude.encode()}
        self._grading = grading
        self._session: Session | None = None
        self._num_deaths = 0
        self._failure: tuple[str, bytes] | None = None  # of every further call
        self.num_calls = 0

    async def perform(self, request: bytes, clock: Clock) -> tuple[str, bytes]:
        """Have it do what the tests ask; return a kind and a payload for them."""
        self.num_calls += 1
        if len(request) > MAX_REPLY_BYTES:
            if self.num_calls > 1:  # an earlier result may have made it so long
                return _failed("output", "the tests would pass far too long a value")
            raise GraderError(f"the tests pass {len(request):,} bytes to a function, more than {MAX_REPLY_BYTES:,}")
        if self._failure is not None:
            return self._failure
        if self._session is None:
            files = {**self._files, **grader_files(*PROGRAM_MODULES)}
            limits = self._grading.limits(self._grading.test_s, 2 * MAX_REPLY_BYTES)
            self._session = await self._grading.sandbox.open_session(files=files, limits=limits)
            loaded = await self._run_cell(self._session, _START.format(self._num_deaths), clock)
            if loaded[0] != "value":
                self._failure = loaded
                return loaded
        return await self._run_cell(self._session, f"perform({request!r})", clock)

    async def close(self) -> None:
        """End its session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _run_cell(self, session: Session, code: str, clock: Clock) -> tuple[str, bytes]:
        if clock.left_s <= 0:
            return _failed("timeout", "it took too long")
        try:
            ran = await session.run_cell(code, timeout_s=clock.left_s)
        except SandboxDeadError:  # something that it left behind ended its interpreter, between two calls
            return await self._died("exited", "its interpreter is gone")
        clock.spend(ran.wall_s)
        if ran.ended != "ok" or not ran.is_alive:
            return await self._died(OUTCOME_OF_CELL.get(ran.ended, "exited"), f"the program ended as {ran.ended!r}")
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
            if len(payload) > MAX_REPLY_BYTES:
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
