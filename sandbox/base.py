"""What a sandbox is: untrusted programs go in, plain results come out.

A program that fails is a result. A sandbox that fails is a `SandboxError`, which says nothing about the program and
is never to be read as a reward.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Literal

from ..errors import ProgramError, SandboxError
from .job import Job, make_job
from .limits import Limits
from .results import CellResult, ExecResult, FileInfo


class Session(ABC):
    """A persistent interpreter with a work folder of its own; one cell at a time.

    Also a context manager: `async with await sandbox.open_session() as session`. After `close`, and once its
    interpreter is gone by the doing of its cells, every call raises SandboxDeadError, and nothing of it is run. Where
    they did nothing to end it, it is SandboxLostError. (A ledger of live sessions is the backend's `num_sessions`.)
    """

    can_fork: ClassVar[bool] = False

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it is open and its interpreter there, as far as is known; after False it is never True again."""

    @abstractmethod
    async def run_cell(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """Run code in the interpreter; what it defines stays.

        At the timeout the cell is interrupted; an interpreter that does not come back then is killed. Cancelling the
        call ends the session.

        Args:
            code: Python, or shell commands, by the session's language.
            timeout_s: By default the session's `wall_s`.

        Raises:
            ProgramError: The code is no text, empty or too long.
            SandboxDeadError: The session was closed or its interpreter gone before; nothing of this cell was run.
            SandboxLostError: The session was ended by nothing of its cells' doing, before this cell or under it.
            SandboxError: The sandbox itself failed, or another cell is running.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Interrupt the running cell, which then ends as "interrupted"; without one, do nothing."""

    @abstractmethod
    async def run(
        self,
        code: str | None = None,
        *,
        language: str = "python",
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a program beside the interpreter, in the same work folder and under the same limits.

        It shares files with the interpreter and nothing else: what cells have done to their interpreter does not
        touch it. All processes that it leaves behind are the session's.
        """

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return a regular file's content.

        Raises:
            ProgramError: There is no such file, it is no regular file, is reached through a link, or is longer.
        """

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """Write a regular file, making its folders.

        Raises:
            ProgramError: The path leads through a link or out of the work folder, or the disk is full.
        """

    @abstractmethod
    async def list_files(self, path: str = ".", *, max_entries: int = 10_000) -> list[FileInfo]:
        """Return everything below a folder, in order of paths, without following links.

        Raises:
            ProgramError: There is no such folder, or it holds more than `max_entries`.
        """

    @abstractmethod
    async def snapshot(self) -> bytes:
        """Return the work folder as a tar archive of regular files and folders only; `open_session` takes it.

        Raises:
            ProgramError: It is larger than the session's disk.
        """

    async def fork(self) -> "Session":
        """Return a second session with the same interpreter state and a copy of the work folder.

        Raises:
            ForkRefusedError: The interpreter does not fork, for what its cells did to it or left running.
            SandboxError: This backend cannot (`can_fork`), or failed.
        """
        raise SandboxError(f"{type(self).__name__} cannot fork; its can_fork says so")

    @abstractmethod
    async def close(self) -> None:
        """Kill every process of the session and free what it held; a second call does nothing."""

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Sandbox(ABC):
    """A place to run untrusted programs; one per process and event loop serves thousands of calls.

    Also a context manager: `async with LocalSandbox() as sandbox`. Callers beyond the bounded number of workers
    wait; the wait is not part of any limit. Cancelling a call kills what it started before the cancellation is
    passed on.
    """

    name: ClassVar[str]
    tiers: ClassVar[Mapping[str, str]] = {}
    """What its tiers mean, for people; of a tier that names several shortcomings, each has its own entry."""

    @property
    @abstractmethod
    def tier(self) -> str:
        """How well programs are isolated on this machine; known once started."""

    @property
    @abstractmethod
    def languages(self) -> frozenset[str]:
        """Which of `LANGUAGES` can be run here; known once started."""

    @property
    @abstractmethod
    def num_sessions(self) -> int:
        """How many sessions are open."""

    @abstractmethod
    async def start(self) -> None:
        """Find out what this machine can do, sweep what a crashed process left, and start workers; idempotent.

        Raises:
            SandboxUnavailableError: It cannot work here; the message says what is missing and how to get it.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all runs and sessions, and remove everything that was made."""

    async def run(
        self,
        code: str | None = None,
        *,
        language: str = "python",
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
    ) -> ExecResult:
        """Run one program from a clean start, and leave nothing behind.

        Args:
            code: Source code in `language`.
            language: One of `LANGUAGES`.
            argv: A command instead of code; its first word is looked up in the sandbox's PATH.
            stdin: What it can read.
            files: Contents by path below the work folder; one that the command's first word names (`./main`) can be
                executed.
            limits: By default `Limits()`.

        Raises:
            ProgramError: The program cannot be run as given: not text, empty, too long, an unsafe path.
            SandboxLostError: The program was killed from outside, or for the memory that the machine lacks.
            SandboxError: The sandbox failed; nothing is known about the program.
        """
        job = make_job(code, language, argv, stdin, files, limits or Limits())
        await self.start()
        if argv is None and language not in self.languages:
            raise ProgramError(
                f"{language} is not installed here; this sandbox runs {', '.join(sorted(self.languages))}"
            )
        return await self._run(job)

    @abstractmethod
    async def _run(self, job: Job) -> ExecResult:
        """Run one checked job."""

    @abstractmethod
    async def open_session(
        self,
        language: Literal["python", "bash"] = "python",
        *,
        files: Mapping[str, bytes] | None = None,
        snapshot: bytes | None = None,
        limits: Limits | None = None,
    ) -> Session:
        """Open a session.

        Args:
            language: Of its cells.
            files: Contents by path below the work folder.
            snapshot: What `Session.snapshot` returned, to start from.
            limits: By default `Limits()`; `wall_s` is the default timeout of a cell.

        Raises:
            ProgramError: A path or the snapshot cannot be used.
            SandboxError: The sandbox failed.
        """

    async def __aenter__(self) -> "Sandbox":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
