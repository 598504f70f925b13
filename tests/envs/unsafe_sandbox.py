"""A sandbox that isolates nothing, for tests of what stands above sandboxes: it counts, and fails on request."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from turngym.errors import ProgramError, SandboxDeadError, SandboxError
from turngym.sandbox.base import Sandbox, Session
from turngym.sandbox.job import Job, check_code
from turngym.sandbox.limits import Limits
from turngym.sandbox.results import CellResult, ExecResult, FileInfo

REPL = """
import ast, json, os, sys, traceback
control, replies = os.fdopen(3, "rb"), 4
names = {"__name__": "__main__"}
for line in control:
    code, reply = json.loads(line), {"ended": "ok", "value": None, "error": None}
    try:
        tree = ast.parse(code)
        last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        value = eval(compile(last, "<cell>", "eval"), names) if last else None
        reply["value"] = None if value is None else repr(value)
    except BaseException:
        reply.update(ended="error", error=traceback.format_exc())
    for stream in (sys.stdout, sys.stderr):
        try: stream.flush()
        except Exception: pass
    os.write(replies, json.dumps(reply).encode() + b"\\n")
"""


class UnsafeSession(Session):
    can_fork = True

    def __init__(self, sandbox: "UnsafeSandbox", files: Mapping[str, bytes], limits: Limits) -> None:
        self.sandbox, self.limits, self.cells = sandbox, limits, []
        self.folder = Path(tempfile.mkdtemp())
        write_files(self.folder, files)
        self.is_closed = False
        control, self._control = os.pipe()
        self._replies, replies = os.pipe()
        self._written = dict.fromkeys(("out", "err"), 0)
        moves = f"import os; os.dup2({control}, 3); os.dup2({replies}, 4)\n" if (control, replies) != (3, 4) else ""
        with (self.folder.with_suffix(".out")).open("wb") as out, self.folder.with_suffix(".err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", moves + REPL],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.folder,
                pass_fds=[control, replies],
                start_new_session=True,
            )
        os.close(control)
        os.close(replies)

    @property
    def is_alive(self) -> bool:
        return not self.is_closed and self._process.poll() is None

    async def run_cell(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        check_code(code, "python")
        self.sandbox.maybe_fail()
        if self.is_closed or self._process.poll() is not None:
            raise SandboxDeadError("the session is closed or its interpreter gone")
        self.cells.append(code)
        started = time.monotonic()
        os.write(self._control, json.dumps(code).encode() + b"\n") if len(code) < 60_000 else await asyncio.to_thread(
            os.write, self._control, json.dumps(code).encode() + b"\n"
        )
        try:
            line = await asyncio.wait_for(asyncio.to_thread(read_line, self._replies), timeout_s or self.limits.wall_s)
            reply: dict[str, Any] = json.loads(line) if line else {"ended": "exited", "value": None, "error": "gone"}
        except TimeoutError:
            self.kill()
            reply = {"ended": "timeout", "value": None, "error": "timeout"}
        except asyncio.CancelledError:
            self.kill()
            raise
        streams = {}
        for name in ("out", "err"):
            content = self.folder.with_suffix(f".{name}").read_bytes()
            streams[name] = content[self._written[name] :]
            self._written[name] = len(content)
        keep = self.limits.output_bytes
        is_alive = reply["ended"] in ("ok", "error")
        return CellResult(
            ended=reply["ended"],
            out=streams["out"][:keep],
            err=streams["err"][:keep],
            value=reply["value"],
            error=reply["error"],
            exit_code=None,
            is_out_truncated=len(streams["out"]) > keep,
            is_err_truncated=len(streams["err"]) > keep,
            wall_s=time.monotonic() - started,
            tier="none",
            is_alive=is_alive,
        )

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    async def fork(self) -> Session:
        """Return a session that has run the same cells in a copy of the folder."""
        files = {str(p.relative_to(self.folder)): p.read_bytes() for p in self.folder.rglob("*") if p.is_file()}
        twin = UnsafeSession(self.sandbox, files, self.limits)
        self.sandbox.sessions.append(twin)
        for code in list(self.cells):
            await twin.run_cell(code)
        return twin

    async def close(self) -> None:
        self.sandbox.num_closes += 1
        if self.is_closed:
            return
        self.sandbox.maybe_fail("close")
        self.is_closed = True
        self.kill()
        os.close(self._control)
        await asyncio.sleep(0)
        os.close(self._replies)
        for path in self.folder.parent.glob(f"{self.folder.name}.*"):
            path.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def interrupt(self) -> None:
        raise SandboxError("not here")

    async def run(self, code=None, *, language="python", argv=None, stdin=b"", timeout_s=None) -> ExecResult:
        raise SandboxError("not here")

    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return (self.folder / path).read_bytes()

    async def write_file(self, path: str, content: bytes) -> None:
        (self.folder / path).write_bytes(content)

    async def list_files(self, path: str = ".", *, max_entries: int = 10_000) -> list[FileInfo]:
        raise SandboxError("not here")

    async def snapshot(self) -> bytes:
        raise SandboxError("not here")


class UnsafeSandbox(Sandbox):
    """Plain subprocesses.

    Attributes:
        sessions: All that were ever opened.
        failing: Which of "run", "cell", "open" and "close" raises SandboxError, and how often still.
    """

    name = "unsafe"
    tier = "none"
    languages = frozenset({"python", "bash"})

    def __init__(self) -> None:
        self.sessions: list[UnsafeSession] = []
        self.failing: dict[str, int] = {}
        self.num_runs = 0
        self.num_closes = 0

    @property
    def num_sessions(self) -> int:
        return sum(not session.is_closed for session in self.sessions)

    def maybe_fail(self, what: str = "cell") -> None:
        if self.failing.get(what, 0):
            self.failing[what] -= 1
            raise SandboxError(f"{what} failed")

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        for session in self.sessions:
            await session.close()

    async def _run(self, job: Job) -> ExecResult:
        self.maybe_fail("run")
        self.num_runs += 1
        folder = Path(tempfile.mkdtemp())
        try:
            write_files(folder, job.files)
            if job.executable is not None:
                (folder / job.executable).chmod(0o755)
            argv = job.argv or (sys.executable, "-I", "-c", job.code or "")
            return await asyncio.to_thread(run_process, argv, folder, job)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def open_session(
        self,
        language: Literal["python", "bash"] = "python",
        *,
        files: Mapping[str, bytes] | None = None,
        snapshot: bytes | None = None,
        limits: Limits | None = None,
    ) -> Session:
        self.maybe_fail("open")
        if snapshot is not None:
            raise ProgramError("no snapshots here")
        session = UnsafeSession(self, files or {}, limits or Limits())
        self.sessions.append(session)
        return session


def run_process(argv, folder: Path, job: Job) -> ExecResult:
    started = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, start_new_session=True
    )
    ended = "ok"
    try:
        out, err = process.communicate(job.stdin, timeout=job.limits.wall_s)
    except subprocess.TimeoutExpired:
        ended = "timeout"
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    code = process.returncode
    if ended == "ok":
        ended = "ok" if code == 0 else "nonzero" if code > 0 else "signal"
    keep = job.limits.output_bytes
    return ExecResult(
        ended=ended,  # type: ignore[arg-type]
        exit_code=code if ended in ("ok", "nonzero") else None,
        signal=-code if ended == "signal" else None,
        out=out[:keep],
        err=err[:keep],
        is_out_truncated=len(out) > keep,
        is_err_truncated=len(err) > keep,
        wall_s=time.monotonic() - started,
        cpu_s=None,
        peak_memory_bytes=None,
        tier="none",
    )


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def read_line(descriptor: int) -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return b""
        data += chunk
    return data
