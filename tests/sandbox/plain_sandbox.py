"""A sandbox that isolates nothing, for testing the checks: temporary folders, plain processes, programs of our own."""

import ast
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from io import BytesIO
from pathlib import Path, PurePosixPath

from turngym.errors import ForkRefusedError, ProgramError, SandboxDeadError, SandboxError
from turngym.sandbox.base import Sandbox, Session
from turngym.sandbox.job import check_code, check_files, check_path, make_job
from turngym.sandbox.limits import Limits
from turngym.sandbox.results import CellResult, ExecResult, FileInfo

POLL_S = 0.01
# A cell is exec'd by this loop, which reads names of files with code and writes lines with endings.
DRIVER = r"""
import ast, os, resource, signal, sys, traceback
space = {"__name__": "__main__"}
sys.modules["__main__"].__dict__.update(space)
space = sys.modules["__main__"].__dict__
def run(code):
    tree = compile(code, "<cell>", "exec", ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), space)
    return None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
def serve(requests, replies):
    while line := requests.readline():
        word, _, rest = line.strip().partition(" ")
        if word == "fork":
            folder, ask, answer = rest.split()
            if os.fork() == 0:
                os.setsid()
                os.chdir(folder)
                replies = open(answer, "w")
                replies.write("ready\n"); replies.flush()
                return serve(open(ask), replies)
            continue
        ended, value, error = "ok", None, None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            out = os.open(rest + ".out", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            err = os.open(rest + ".err", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(out, 1); os.dup2(err, 2); os.close(out); os.close(err)
            try:
                value = run(open(rest, newline="").read())
                value = None if value is None else repr(value)[:20000]
            except KeyboardInterrupt: ended = "interrupted"
            except BaseException as failure:
                ended, value = "error", None
                error = traceback.format_exc() if not isinstance(failure, SystemExit) else f"SystemExit: {failure}"
            sys.stdout.flush(); sys.stderr.flush()
        except KeyboardInterrupt: ended = "interrupted"
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        replies.write(repr((ended, value, error)) + "\n"); replies.flush()
        os.dup2(0, 1); os.dup2(0, 2)
serve(open(sys.argv[1]), open(sys.argv[2], "w"))
"""


class PlainSandbox(Sandbox):
    """Runs each program in a folder below the temporary folder."""

    name = "plain"
    tier = "none"
    languages = frozenset({"python", "bash"})
    session_class: "type[PlainSession]"

    def __init__(self) -> None:
        self.sessions: set[PlainSession] = set()
        self._places = asyncio.Semaphore(8)

    @property
    def num_sessions(self) -> int:
        return len(self.sessions)

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        for session in list(self.sessions):
            await session.close()

    async def _run(self, job) -> ExecResult:
        async with self._places:
            folder = Path(tempfile.mkdtemp(prefix="turngym-plain-"))
            try:
                place(folder, job.files)
                if job.executable is not None:
                    (folder / job.executable).chmod(0o755)
                return await self.run_in(folder, job)
            finally:
                shutil.rmtree(folder)

    async def run_in(self, folder: Path, job) -> ExecResult:
        """Run one job in a folder."""
        argv = [sys.executable, "-I", "-c", job.code] if job.argv is None else list(job.argv)
        mark = f"PLAIN_RUN={uuid.uuid4()}"
        limits, began = job.limits, time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as given:
            given.write(job.stdin)
            given.seek(0)
            try:
                process = subprocess.Popen(
                    argv, cwd=folder, stdin=given, stdout=out, stderr=err, preexec_fn=lambda: self.limit(limits),
                    env=self.environment(folder) | dict([mark.split("=")]),
                )  # fmt: skip
            except OSError:
                return ExecResult("nonzero", 127, None, b"", b"", False, False, 0.0, None, None, self.tier)
            ended = None
            try:
                while process.poll() is None:
                    await asyncio.sleep(POLL_S)
                    written = os.fstat(out.fileno()).st_size + os.fstat(err.fileno()).st_size
                    if time.monotonic() - began > limits.wall_s:
                        ended = "timeout"
                    elif written > limits.flood_bytes:
                        ended = "output"
                    if ended:
                        break
            finally:
                self.end(process, mark)
            code = process.returncode
            if ended is None and code == -signal.SIGXCPU:
                ended = "timeout"
            ended = ended or ("ok" if code == 0 else "nonzero" if code > 0 else "signal")
            kept = [os.pread(file.fileno(), limits.output_bytes + 1, 0) for file in (out, err)]
        size = limits.output_bytes
        return ExecResult(
            ended,
            code if ended in ("ok", "nonzero") else None,
            -code if ended == "signal" else None,
            kept[0][:size],
            kept[1][:size],
            len(kept[0]) > size,
            len(kept[1]) > size,
            time.monotonic() - began,
            None,
            None,
            self.tier,
        )

    def environment(self, folder: Path) -> dict[str, str]:
        """Return what programs find."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(folder)}

    def limit(self, limits: Limits) -> None:
        """Take limits; runs in the child."""
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes + (256 << 20),) * 2)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits.num_open_files,) * 2)
        if limits.cpu_s:
            resource.setrlimit(resource.RLIMIT_CPU, (int(limits.cpu_s), int(limits.cpu_s) + 1))

    def end(self, process: subprocess.Popen, mark: str) -> None:
        """Kill a process and all that it started."""
        while pids := marked(mark) - {process.pid} | ({process.pid} if process.poll() is None else set()):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.wait()

    async def open_session(self, language="python", *, files=None, snapshot=None, limits=None) -> Session:
        session = self.session_class(self, limits or Limits())
        try:
            session.fill(check_files(files), snapshot)
            session.begin()
        except BaseException:
            await session.close()
            raise
        return session


class PlainSession(Session):
    """A Python interpreter that takes cells as files; folders are copied at a fork."""

    can_fork = True

    def __init__(self, sandbox: PlainSandbox, limits: Limits) -> None:
        self.sandbox, self.limits = sandbox, limits
        self.home = Path(tempfile.mkdtemp(prefix="turngym-plain-"))
        self.box = self.home / "box"
        self.box.mkdir()
        self.pid: int | None = None
        self.process: subprocess.Popen | None = None
        self.is_dead = self.is_busy = self.is_interrupted = False
        self.count = 0
        self.ask = None
        sandbox.sessions.add(self)

    @property
    def is_alive(self) -> bool:
        return not self.is_dead

    def fill(self, files, snapshot) -> None:
        if snapshot is not None:
            self._unpack(snapshot)
        place(self.box, files)

    def _unpack(self, snapshot: bytes) -> None:
        try:
            with tarfile.open(fileobj=BytesIO(snapshot)) as archive:
                for member in archive:
                    if not (member.isreg() or member.isdir()) or member.name.startswith("/"):
                        raise ProgramError(f"{member.name!r} is no file or folder")
                    check_path(member.name)
                    archive.extract(member, self.box, filter="data")
        except tarfile.TarError as error:
            raise ProgramError(f"no archive: {error}") from None

    def _pipes(self) -> tuple[str, str]:
        paths = str(self.home / "ask"), str(self.home / "answer")
        for path in paths:
            os.mkfifo(path)
        return paths

    def begin(self) -> None:
        ask, answer = self._pipes()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", DRIVER, ask, answer], cwd=self.box, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=self.sandbox.environment(self.box), preexec_fn=lambda: self.sandbox.limit(self.limits),
        )  # fmt: skip
        self.pid = self.process.pid
        self._open()

    def _open(self) -> None:
        # Neither waits for the other side, which may be gone.
        self.ask = os.fdopen(os.open(self.home / "ask", os.O_RDWR), "w")
        self.answer = os.fdopen(os.open(self.home / "answer", os.O_RDONLY | os.O_NONBLOCK), errors="replace")

    def _check(self) -> None:
        if self.is_dead:
            raise SandboxDeadError("the session is closed or its interpreter gone")

    async def run_cell(self, code, *, timeout_s=None) -> CellResult:
        self._check()
        check_code(code, "python")
        if self.is_busy:
            raise SandboxError("another cell is running")
        self.is_busy, self.is_interrupted = True, False
        try:
            return await self._run_cell(code, timeout_s or self.limits.wall_s)
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self.is_busy = False

    async def _run_cell(self, code: str, timeout_s: float) -> CellResult:
        self.count += 1
        path = self.home / f"cell{self.count}"
        path.write_text(code, newline="")
        out, err = path.with_suffix(".out"), path.with_suffix(".err")
        began, interrupted_at, ended = time.monotonic(), None, None
        with contextlib.suppress(BrokenPipeError):  # then its end is seen below
            self.ask.write(f"cell {path}\n")
            self.ask.flush()
        while True:
            line = self.answer.readline()
            if line:
                try:
                    ended, value, error = ast.literal_eval(line)
                except (ValueError, SyntaxError):  # a cell has written there
                    ended, value, error, self.is_dead = "exited", None, None, True
                break
            value = error = None
            now = time.monotonic()
            if is_gone(self.pid):
                ended, self.is_dead = "exited", True
            elif out.exists() and out.stat().st_size > self.limits.flood_bytes:
                ended, self.is_dead = "output", True
            elif interrupted_at and now - interrupted_at > 1.0:
                ended, self.is_dead = "timeout", True
            if ended:
                break
            if not interrupted_at and now - began > timeout_s:
                interrupted_at = now
                os.kill(self.pid, signal.SIGINT)
            await asyncio.sleep(POLL_S)
        if ended == "interrupted" and interrupted_at and not self.is_interrupted:
            ended = "timeout"
        size = self.limits.output_bytes
        kept = [file.read_bytes() if file.exists() else b"" for file in (out, err)]
        if self.is_dead:
            await self.close()
        return CellResult(
            ended, kept[0][:size], kept[1][:size], value, error, None, len(kept[0]) > size, len(kept[1]) > size,
            time.monotonic() - began, self.sandbox.tier, not self.is_dead,
        )  # fmt: skip

    async def interrupt(self) -> None:
        if self.is_busy and self.pid:
            self.is_interrupted = True
            os.kill(self.pid, signal.SIGINT)

    async def run(self, code=None, *, language="python", argv=None, stdin=b"", timeout_s=None) -> ExecResult:
        self._check()
        limits = Limits(**{**vars(self.limits), "wall_s": timeout_s or self.limits.wall_s})
        job = make_job(code, language, argv, stdin, None, limits)
        place(self.box, job.files)
        return await self.sandbox.run_in(self.box, job)

    def _path(self, path: str, what: str) -> Path:
        self._check()
        relative = PurePosixPath(check_path(path))
        for parent in [*reversed(relative.parents), relative]:
            if (self.box / parent).is_symlink():
                raise ProgramError(f"{what} {path!r} leads through a link")
        return self.box / relative

    async def read_file(self, path, *, max_bytes=1 << 20) -> bytes:
        file = self._path(path, "reading")
        if not file.is_file() or file.stat().st_size > max_bytes:
            raise ProgramError(f"{path!r} is no regular file of at most {max_bytes} bytes")
        return file.read_bytes()

    async def write_file(self, path, content) -> None:
        file = self._path(path, "writing")
        if len(content) > self.limits.disk_bytes:
            raise ProgramError("the disk is full")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        except OSError as error:
            raise ProgramError(str(error)) from None

    async def list_files(self, path=".", *, max_entries=10_000) -> list[FileInfo]:
        folder = self._path(path, "listing")
        if not folder.is_dir():
            raise ProgramError(f"{path!r} is no folder")
        found = []
        for root, folders, files in os.walk(folder):
            for name in [*folders, *files]:
                entry = Path(root, name)
                kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file"
                kind = "other" if kind == "file" and not entry.is_file() else kind
                relative = os.path.relpath(entry, self.box)
                found.append(FileInfo(relative, kind, entry.lstat().st_size if kind == "file" else 0))
        if len(found) > max_entries:
            raise ProgramError(f"more than {max_entries} entries")
        return sorted(found, key=lambda info: info.path)

    async def snapshot(self) -> bytes:
        self._check()
        content, size = BytesIO(), 0
        with tarfile.open(fileobj=content, mode="w") as archive:
            for info in await self.list_files():
                size += info.num_bytes
                if size > self.limits.disk_bytes:
                    raise ProgramError("it is larger than the disk")
                if info.kind in ("file", "folder"):
                    archive.add(self.box / info.path, info.path, recursive=False)
        return content.getvalue()

    async def fork(self) -> Session:
        self._check()
        other = type(self)(self.sandbox, self.limits)
        shutil.copytree(self.box, other.box, symlinks=True, dirs_exist_ok=True)
        ask, answer = other._pipes()
        before = children(self.pid)
        self.ask.write(f"fork {other.box} {ask} {answer}\n")
        self.ask.flush()
        other._open()
        while not other.answer.readline():
            new = children(self.pid) - before
            if is_gone(self.pid) or any(is_gone(pid) for pid in new):
                await other.close()
                raise ForkRefusedError("an interpreter ended instead")
            await asyncio.sleep(POLL_S)
        (other.pid,) = children(self.pid) - before
        return other

    async def close(self) -> None:
        self.is_dead = True
        if self not in self.sandbox.sessions:
            return
        self.sandbox.sessions.discard(self)
        if self.pid:
            forks = {session.pid for session in self.sandbox.sessions}
            kill_tree(self.pid, spare=forks)
        if self.ask:
            with contextlib.suppress(BrokenPipeError):
                self.ask.close()
            self.answer.close()
        if self.process:
            self.process.wait()
        shutil.rmtree(self.home)


def place(folder: Path, files) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def is_gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def children(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return set()


def marked(mark: str) -> set[int]:
    """Return the processes that were started with a variable and are no zombies."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
    return found


def kill_marked(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_tree(pid: int, spare=frozenset()) -> None:
    """Kill a process and its descendants, the youngest last; those that were handed to init are not found."""
    for child in children(pid) - set(spare):
        kill_tree(child, spare)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while not is_gone(pid):
        time.sleep(POLL_S)


PlainSandbox.session_class = PlainSession
