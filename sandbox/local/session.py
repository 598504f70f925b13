"""A session of the local sandbox: an interpreter in a jail of its own, its files, and its forks."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import ForkRefusedError, ProgramError, SandboxDeadError, SandboxError, SandboxLostError
from ..job import check_code, make_job
from ..limits import Limits
from ..results import CellEnded, CellResult, ExecResult
from . import wire
from .console import Interpreter
from .handle import JailHandle
from .program import run_program
from .session_files import WORK_S, SessionFiles
from .starting import fork_interpreter

if TYPE_CHECKING:
    from .backend import LocalSandbox

INTERRUPT_GRACE_S: Final = 0.5
"""From an interrupt until the next, and from the second until the interpreter is killed."""
_INTERRUPTED_CODE: Final = 130
_CELL_ENDS: Final = ("ok", "error", "interrupted")


class LocalSession(SessionFiles):
    """One interpreter of a jail; forks share the jail, each with its own processes' view of files."""

    def __init__(
        self, sandbox: "LocalSandbox", jail: JailHandle, branch: int, interpreter: Interpreter, limits: Limits
    ) -> None:
        self._sandbox, self._jail, self._branch = sandbox, jail, branch
        self._interpreter, self.limits = interpreter, limits
        self._is_busy = self._is_closed = self._was_closed = False
        self._lost_because: str | None = None
        self._burying = asyncio.Lock()
        self._stopping: CellEnded | None = None
        self._is_interrupted = False
        self._oom_before = jail.oom_count()
        interpreter.out.on_flood = interpreter.err.on_flood = lambda: self._stop_soon("output")
        self._family: set[LocalSession] = {self}
        if branch == 0:
            jail.on_gone = lambda branch, status: self._note_end(branch)
        sandbox.add(self)

    @property
    def is_alive(self) -> bool:
        """Whether it is open and its interpreter there, as far as is known."""
        return not self._is_closed and self._interpreter.is_alive and self._jail.channel.is_open

    @property
    def can_fork(self) -> bool:  # type: ignore[override]  # by language and tier, not by class
        """Whether this session can be forked: a Python one, where /proc is there and the tier is not the weak one."""
        return self._interpreter.is_python and self._jail.has_proc and self._jail.folder is None

    async def run_cell(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """Run code in the interpreter; see `Session.run_cell`."""
        source = check_code(code, "Python" if self._interpreter.is_python else "bash")
        if "\0" in source:
            raise ProgramError("the code holds a NUL character")
        await self._begin()
        try:
            return await self._run_cell(source, timeout_s or self.limits.wall_s)
        except BaseException:
            await self._end_branch()
            raise
        finally:
            self._is_busy = False

    async def _run_cell(self, source: str, timeout_s: float) -> CellResult:
        interpreter = self._interpreter
        self._stopping, self._is_interrupted = None, False
        self._oom_before = self._jail.oom_count(is_idle=len(self._family) == 1)
        for capture in (interpreter.out, interpreter.err):
            capture.wake()
        began = time.monotonic()
        timer = asyncio.get_running_loop().call_later(timeout_s, self._stop_soon, "timeout")
        waiting = interpreter.expect()
        try:
            if interpreter.is_python:
                interpreter.tell({"op": "cell"}, [source.encode()])
            else:
                await interpreter.tell_shell(source)
            reply = await waiting
        finally:
            timer.cancel()
        return await self._cell_result(reply, time.monotonic() - began)

    async def _cell_result(self, reply: dict[str, Any] | None, wall_s: float) -> CellResult:
        interpreter = self._interpreter
        ended, value, error, code = self._read_reply(reply)
        if not interpreter.is_alive:
            if self._was_closed:
                raise SandboxLostError("the session was closed while a cell of it ran")
            await self._bury()
            if ended == "exited" and self._lost_because is not None:
                raise SandboxLostError(f"a cell was ended by nothing of its own doing: {self._lost_because}")
        (out, is_out_cut), (err, is_err_cut) = interpreter.out.take(), interpreter.err.take()
        for capture in (interpreter.out, interpreter.err):
            capture.rest()
        return CellResult(
            ended=ended,
            out=out,
            err=err,
            value=value,
            error=error,
            exit_code=code,
            is_out_truncated=is_out_cut,
            is_err_truncated=is_err_cut,
            wall_s=wall_s,
            tier=self._sandbox.tier,
            is_alive=interpreter.is_alive,
        )

    def _read_reply(self, reply: dict[str, Any] | None) -> tuple[CellEnded, str | None, str | None, int | None]:
        """Return how a cell ended, its value, its error and its exit code."""
        if reply is None:
            self._interpreter.end()
            if self._stopping is not None:
                return self._stopping, None, f"the interpreter was killed ({self._stopping})", None
            if self._jail.oom_cause(self._oom_before) == "limit":
                return "memory", None, "the interpreter was killed: it used more memory than its limit", None
            return "exited", None, "the interpreter has ended", None
        if not self._interpreter.is_python:
            code = int(reply["code"])
            ended: CellEnded = "ok" if code == 0 else "error"
            if self._is_interrupted and code == _INTERRUPTED_CODE:
                ended = "interrupted"
            return self._stopping or ended, None, None if code == 0 else f"exit code {code}", code
        told = reply.get("ended")
        if reply.get("op") != "done" or told not in _CELL_ENDS:
            self._interpreter.end()
            return "exited", None, "the interpreter has answered with something else than a cell's outcome", None
        if self._stopping is not None and told == "interrupted":
            told = self._stopping
        return told, reply.get("value"), reply.get("error"), None

    def _stop_soon(self, why: CellEnded) -> None:
        """Interrupt the running cell, twice, and then kill its interpreter."""
        if not self._is_busy or self._stopping is not None or not self._interpreter.is_alive:
            return
        self._stopping = why
        self._send_interrupt()
        loop = asyncio.get_running_loop()
        waiting = self._interpreter.waiting

        def insist(step: int) -> None:
            if waiting is None or waiting.done():
                return
            if step == 0:
                self._send_interrupt()
                loop.call_later(INTERRUPT_GRACE_S, insist, 1)
            else:
                self._interpreter.end()

        loop.call_later(INTERRUPT_GRACE_S, insist, 0)

    def _send_interrupt(self) -> None:
        if self._jail.channel.is_open:
            group = not self._interpreter.is_python
            self._jail.channel.send({"op": "interrupt", "branch": self._branch, "and_group": group})

    async def interrupt(self) -> None:
        """Interrupt the running cell; see `Session.interrupt`."""
        if self._is_busy and self._interpreter.is_alive:
            self._is_interrupted = True
            self._send_interrupt()

    async def run(
        self,
        code: str | None = None,
        *,
        language: str = "python",
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a program beside the interpreter; see `Session.run`."""
        await self._check_alive()
        limits = self.limits if timeout_s is None else replace(self.limits, wall_s=timeout_s)
        job = make_job(code, language, argv, stdin, None, limits)
        try:
            return await run_program(self._jail, job, self._sandbox.tier, branch=self._branch, is_in_session=True)
        except SandboxLostError:
            await self._check_alive()  # says more of a session that is lost with it
            raise

    async def _ask_init(
        self, body: dict[str, str | int], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()
    ) -> wire.Message:
        await self._check_alive()
        try:
            return await self._jail.ask(body | {"branch": self._branch}, blobs, fds, timeout_s=WORK_S)
        except SandboxDeadError:
            await self._check_alive()
            raise

    async def fork(self) -> "LocalSession":
        """Return a second session with the same interpreter state and its own files; see `Session.fork`.

        Files that are open stay those of this session; threads do not come along.
        """
        if not self.can_fork:
            raise SandboxError("this session cannot fork: only Python can, where /proc is there and the tier not weak")
        await self._begin()
        try:
            child, branch = await fork_interpreter(self._jail, self._interpreter, self.limits, len(self._family) + 1)
        except ForkRefusedError:
            await self._bury()
            if self._lost_because is not None:
                raise SandboxLostError(f"a session was lost while it was forked: {self._lost_because}") from None
            raise
        finally:
            self._is_busy = False
        session = LocalSession(self._sandbox, self._jail, branch, child, self.limits)
        session._family = self._family
        self._family.add(session)
        return session

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        self._was_closed, self._lost_because = True, None
        if not self._is_closed:
            await self._end_branch()

    async def _bury(self) -> None:
        """If the interpreter or its jail is gone, end the session and find out whether it was its own doing."""
        async with self._burying:
            if self.is_alive or self._is_closed:
                return
            cause = self._jail.oom_cause(self._oom_before)
            is_clean = await self._end_branch()
            if self._was_closed:
                return
            if cause == "machine":
                self._lost_because = "the kernel killed a process within its limits, for memory that the machine lacks"
            elif cause is None and not is_clean:
                self._lost_because = "its jail was killed from outside"

    async def _end_branch(self) -> bool:
        """Kill every process of this session; with the last of its family the jail is free again.

        Returns:
            Whether the jail was still there to do so, or it was done before.
        """
        self._is_closed = True
        if self not in self._family:
            return True
        self._family.discard(self)
        self._interpreter.end()
        is_clean = False
        try:
            if self._jail.channel.is_open:
                with suppress(SandboxDeadError):  # the jail is gone, and all its processes with it
                    await self._jail.ask({"op": "end_branch", "branch": self._branch}, timeout_s=WORK_S)
                    is_clean = True
        finally:
            self._interpreter.close_streams()
            is_last = not self._family
            await asyncio.shield(self._sandbox.remove(self, self._jail, is_clean=is_clean, is_last=is_last))
        return is_clean

    def _note_end(self, branch: int) -> None:
        """Take note that the interpreter of a branch has ended."""
        for session in self._family:
            if session._branch == branch:
                session._interpreter.end()

    async def _begin(self) -> None:
        await self._check_alive()
        if self._is_busy:
            raise SandboxError("another cell of this session is still running; a session runs one at a time")
        self._is_busy = True

    async def _check_alive(self) -> None:
        if not self.is_alive:
            await self._bury()
        if self._lost_because is not None:
            raise SandboxLostError(f"this session is gone by nothing of its own doing: {self._lost_because}")
        if not self.is_alive:
            raise SandboxDeadError("this session is closed, or its cells have ended its interpreter; open another")
