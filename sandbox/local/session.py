"""A session of the local sandbox: an interpreter in a jail of its own, its files, and its forks."""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import ProgramError, SandboxDeadError, SandboxError
from ..base import Session
from ..job import check_code, check_path, make_job
from ..limits import Limits
from ..results import CellEnded, CellResult, ExecResult, FileInfo
from ..tar_check import check_tar, max_tar_bytes
from . import wire
from .capture import Capture
from .console import Interpreter
from .handle import JailHandle
from .program import run_program
from .starting import fork_interpreter

if TYPE_CHECKING:
    from .backend import LocalSandbox

INTERRUPT_GRACE_S: Final = 0.5
"""From an interrupt until the next, and from the second until the interpreter is killed."""
_WORK_S: Final = 30.0
_MAX_REPLY: Final = 1 << 18
_INTERRUPTED_CODE: Final = 130
_CELL_ENDS: Final = ("ok", "error", "interrupted")


class LocalSession(Session):
    """One interpreter of a jail; forks share the jail, each with its own processes' view of files."""

    def __init__(
        self, sandbox: "LocalSandbox", jail: JailHandle, branch: int, interpreter: Interpreter, limits: Limits
    ) -> None:
        self._sandbox, self._jail, self._branch = sandbox, jail, branch
        self._interpreter, self.limits = interpreter, limits
        self._is_busy = self._is_closed = self._is_jail_lost = False
        self._stopping: CellEnded | None = None
        self._is_interrupted = False
        self._oom_before = 0
        interpreter.out.on_flood = interpreter.err.on_flood = lambda: self._stop_soon("output")
        self._family: set[LocalSession] = {self}
        if branch == 0:
            jail.on_gone = lambda branch, status: self._note_end(branch)
        sandbox.add(self)

    @property
    def can_fork(self) -> bool:  # type: ignore[override]  # by language and tier, not by class
        """Whether this session can be forked: a Python one, where /proc is there and the tier is not the weak one."""
        return self._interpreter.is_python and self._jail.has_proc and self._jail.folder is None

    async def run_cell(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """Run code in the interpreter; see `Session.run_cell`."""
        source = check_code(code, "Python" if self._interpreter.is_python else "bash")
        if "\0" in source:
            raise ProgramError("the code holds a NUL character")
        self._begin()
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
        self._oom_before = self._num_oom_kills()
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
            await self._end_branch()
            if ended == "exited" and self._is_jail_lost:
                raise SandboxDeadError("the jail died under a cell, and not for want of memory")
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
            if self._num_oom_kills() > self._oom_before:
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
        self._check_alive()
        limits = self.limits if timeout_s is None else replace(self.limits, wall_s=timeout_s)
        job = make_job(code, language, argv, stdin, None, limits)
        return await run_program(self._jail, job, self._sandbox.tier, branch=self._branch, is_in_session=True)

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a regular file's content; see `Session.read_file`."""
        reply = await self._files("read", path=check_path(path))
        (fd,) = reply.fds
        with os.fdopen(fd, "rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ProgramError(f"{path!r} holds more than {max_bytes} bytes")
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a regular file; see `Session.write_file`."""
        if not isinstance(content, bytes):
            raise ProgramError(f"wanted bytes as the content of {path!r}, got {type(content).__name__}")
        await self._files("write", [content], path=check_path(path))

    async def list_files(self, path: str = ".", *, max_entries: int = 10_000) -> list[FileInfo]:
        """Return everything below a folder; see `Session.list_files`."""
        reply = await self._files("list", path=check_path(path), max_entries=max_entries)
        return [FileInfo(name, kind, size) for name, kind, size in json.loads(reply.blobs[0])]

    async def snapshot(self) -> bytes:
        """Return the work folder as a tar archive; see `Session.snapshot`."""
        max_bytes = max_tar_bytes(self.limits.disk_bytes, self.limits.num_inodes)
        capture = Capture(max_bytes, max_bytes, lambda: None)
        try:
            packing = asyncio.ensure_future(
                self._files("pack", fds=[capture.writing], max_bytes=self.limits.disk_bytes)
            )
            await asyncio.sleep(0)  # the request is sent, and with it the pipe's other end
            capture.listen()
            await packing
            packed, is_cut = capture.take()
        finally:
            capture.close()
        if is_cut:
            raise ProgramError(f"the work folder's archive is longer than {max_bytes} bytes")
        check_tar(packed, max_bytes=self.limits.disk_bytes, max_members=self.limits.num_inodes)
        return packed

    async def _files(
        self, what: str, blobs: Sequence[bytes] = (), fds: Sequence[int] = (), **details: str | int
    ) -> wire.Message:
        self._check_alive()
        body = {"op": "files", "what": what, "branch": self._branch, **details}
        return await self._jail.ask(body, blobs, fds, timeout_s=_WORK_S)

    async def fork(self) -> "LocalSession":
        """Return a second session with the same interpreter state and its own files; see `Session.fork`.

        Files that are open stay those of this session; threads do not come along.
        """
        if not self.can_fork:
            raise SandboxError("this session cannot fork: only Python can, where /proc is there and the tier not weak")
        self._begin()
        try:
            child, branch = await fork_interpreter(self._jail, self._interpreter, self.limits, len(self._family) + 1)
        finally:
            self._is_busy = False
        session = LocalSession(self._sandbox, self._jail, branch, child, self.limits)
        session._family = self._family
        self._family.add(session)
        return session

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._end_branch()

    async def _end_branch(self) -> None:
        """Kill every process of this session; with the last of its family the jail is free again."""
        self._is_closed = True
        if self not in self._family:
            return
        self._family.discard(self)
        self._interpreter.end()
        is_clean = False
        try:
            if self._jail.channel.is_open:
                with suppress(SandboxDeadError):  # the jail is gone, and all its processes with it
                    await self._jail.ask({"op": "end_branch", "branch": self._branch}, timeout_s=_WORK_S)
                    is_clean = True
        finally:
            self._is_jail_lost = not is_clean
            self._interpreter.close_streams()
            is_last = not self._family
            await asyncio.shield(self._sandbox.remove(self, self._jail, is_clean=is_clean, is_last=is_last))

    def _note_end(self, branch: int) -> None:
        """Take note that the interpreter of a branch has ended."""
        for session in self._family:
            if session._branch == branch:
                session._interpreter.end()

    def _begin(self) -> None:
        self._check_alive()
        if self._is_busy:
            raise SandboxError("another cell of this session is still running; a session runs one at a time")
        self._is_busy = True

    def _check_alive(self) -> None:
        if self._is_closed or not self._interpreter.is_alive:
            raise SandboxDeadError("this session is closed, or its interpreter is gone; open another")

    def _num_oom_kills(self) -> int:
        return 0 if self._jail.group is None else self._jail.group.num_oom_kills()
