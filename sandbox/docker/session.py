"""A session: an interpreter and its work folder in a container of their own."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal

from ...errors import ProgramError, SandboxDeadError, SandboxError, SandboxLostError
from ..job import check_code, make_job
from ..limits import Limits
from ..results import CellResult, ExecResult
from ..tar_check import Member
from .container import Container
from .orders import ANSWER_S, MACHINE_LACKS_MEMORY, NO_OUTPUT, result_of_death, rules, run_job, send_files, split_output
from .pool import ContainerPool
from .program import interpreter_argv
from .session_files import SessionFiles
from .stream import ChannelError, Head

_INTERRUPT_S = 15.0  # a cell past its time is interrupted for 1.5 s and then killed; the runner may wait for its turn


class DockerSession(SessionFiles):
    """See `Session`; `DockerSandbox.open_session` makes it."""

    def __init__(
        self,
        container: Container,
        pool: ContainerPool,
        language: Literal["python", "bash"],
        limits: Limits,
        python: str,
        tier: str,
    ) -> None:
        self._container = container
        self._pool = pool
        self._language = language
        self._limits = limits
        self._python = python
        self._tier = tier
        self._tags = itertools.count()
        self._num_busy = 0
        self._is_cell_running = False
        self._dead_because: str | None = None
        self._is_lost = self._was_closed = False
        self._finding_out: asyncio.Task[None] | None = None
        self._death: asyncio.Task[Literal["memory", "killed"]] | None = None
        container.channel.on_event = self._on_event
        container.channel.on_close = self._on_close

    @property
    def is_alive(self) -> bool:
        """See `Session`."""
        return self._dead_because is None

    async def open(self, files: Mapping[str, bytes], members: Sequence[Member]) -> None:
        """Bring files in and start the interpreter."""
        for member in members:
            if member.content is None:
                await self._ask("make_folder", path=member.path)
            else:
                await send_files(self._container.channel, {member.path: member.content}, mode=member.mode | 0o600)
        await send_files(self._container.channel, files)
        requests = max(5, min(self._limits.num_open_files, 100) - 3)  # out of the way of what programs open
        await self._ask(
            "open",
            language=self._language,
            argv=interpreter_argv(self._language, self._python, requests, requests + 1),
            requests=requests,
            replies=requests + 1,
            **rules(self._limits, is_python=self._language == "python"),
        )

    async def run_cell(self, code: str, *, timeout_s: float | None = None) -> CellResult:
        """See `Session`."""
        blob = check_code(code, self._language).encode()
        if self._language == "bash" and b"\0" in blob:
            raise ProgramError("wanted shell commands without NUL characters")
        await self._check_alive()
        if self._is_cell_running:
            raise SandboxError("another cell of this session is running; wait for it, or interrupt it")
        self._is_cell_running = True
        try:
            async with self._busy():
                return await self._run_cell(blob, self._limits.wall_s if timeout_s is None else timeout_s)
        except asyncio.CancelledError:
            await asyncio.shield(self._end("a cell of it was cancelled"))
            raise
        finally:
            self._is_cell_running = False

    async def _run_cell(self, code: bytes, timeout_s: float) -> CellResult:
        begin = time.monotonic()
        try:
            head, blob = await self._container.channel.call(
                "cell",
                code,
                deadline_s=timeout_s + _INTERRUPT_S,
                max_reply_bytes=2 * self._limits.output_bytes,
                timeout_s=timeout_s,
                output_bytes=self._limits.output_bytes,
                flood_bytes=self._limits.flood_bytes,
            )
        except ChannelError as error:
            head, blob = await self._head_of_death(error), b""
        if head.get("dead"):
            await self._end("its interpreter is gone")
            await self._check_alive()
        if head["ended"] == "lost":
            await self._end(MACHINE_LACKS_MEMORY, is_lost=True)
            raise SandboxLostError(f"a cell was ended by nothing of its own doing: {MACHINE_LACKS_MEMORY}")
        out, err = split_output(head, blob)
        result = CellResult(
            ended=head["ended"],
            out=out,
            err=err,
            value=head.get("value"),
            error=head.get("error"),
            exit_code=head.get("exit_code") if self._language == "bash" else None,
            is_out_truncated=head["is_out_truncated"],
            is_err_truncated=head["is_err_truncated"],
            wall_s=head.get("wall_s", time.monotonic() - begin),
            tier=self._tier,
            is_alive=head["is_alive"],
        )
        if not result.is_alive:
            await self._end(f"its last cell ended it ({result.ended}): {result.error}")
        return result

    async def _head_of_death(self, error: ChannelError) -> Head:
        if self._was_closed:
            raise SandboxLostError("the session was closed while a cell of it ran")
        await self._check_alive()  # whoever closed it has said why
        why = await self._why_dead()
        ended = "memory" if why == "memory" else "timeout" if error.is_silent else "exited"
        return {"ended": ended, "error": str(error), "is_alive": False, **NO_OUTPUT}

    async def interrupt(self) -> None:
        """See `Session`."""
        await self._check_alive()
        if self._is_cell_running:
            await self._ask("interrupt")

    async def run(
        self,
        code: str | None = None,
        *,
        language: str = "python",
        argv: Sequence[str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
    ) -> ExecResult:
        """See `Session`."""
        job = make_job(code, language, argv, stdin, None, self._limits)
        tag = f"run-{next(self._tags)}"
        wall_s = self._limits.wall_s if timeout_s is None else timeout_s
        begin = time.monotonic()
        async with self._busy():
            try:
                return await run_job(
                    self._container,
                    job,
                    python=self._python,
                    wall_s=wall_s,
                    is_alone=False,
                    tag=tag,
                    tier=self._tier,
                )
            except ChannelError as error:
                await self._check_alive()
                result = result_of_death(await self._why_dead(), error, begin, self._tier)
                await self._end(f"a program beside the interpreter ended it: {result.ended}")
                return result
            except asyncio.CancelledError:
                await asyncio.shield(self._kill(tag))
                raise

    async def _kill(self, tag: str) -> None:
        if self._container.channel.is_open:
            await self._ask("kill", tag=tag)

    async def close(self) -> None:
        """See `Session`."""
        self.note_close("it was closed")
        await asyncio.shield(self._end("it was closed"))

    def note_close(self, reason: str) -> None:
        """Take note that it is being closed, by itself or with its sandbox."""
        self._was_closed, self._is_lost = True, False
        self._dead_because = self._dead_because or reason

    async def _ask(self, op: str, **fields: Any) -> None:  # Any: JSON
        async with self._busy():
            await self._container.channel.call(op, deadline_s=ANSWER_S, **fields)

    @asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """Do something that needs the container; a failure of the container ends the session."""
        await self._check_alive()
        self._num_busy += 1
        try:
            yield
        except ChannelError as error:
            await self._check_alive()
            why = await self._why_dead()
            await self._end(f"programs ended it ({why}): {error}")
            raise SandboxDeadError(str(error)) from error
        except SandboxDeadError:
            raise
        except SandboxError as error:
            await self._end(f"the sandbox failed: {error}", is_lost=True)
            raise
        finally:
            self._num_busy -= 1

    async def _check_alive(self) -> None:
        if self._finding_out is not None:
            await asyncio.shield(self._finding_out)
        if self._is_lost:
            raise SandboxLostError(f"the session is gone by nothing of its own doing: {self._dead_because}")
        if self._dead_because is not None:
            raise SandboxDeadError(f"the session is gone: {self._dead_because}; open another")

    async def _why_dead(self) -> Literal["memory", "killed"]:
        """Return what programs did to the container; where it was nothing of theirs, the session is lost."""
        if self._death is None:
            self._death = asyncio.create_task(self._container.why_dead())
        try:
            return await asyncio.shield(self._death)
        except SandboxError as error:
            await self._end(str(error), is_lost=True)
            raise

    async def _find_out(self) -> None:
        """Say why the container went down while nothing was asked of it."""
        with suppress(SandboxError):  # `_check_alive` raises it to whoever comes next
            why = await self._why_dead()
            self._dead_because = f"programs ended its container ({why})"
        self._pool.remove_later(self._container)

    async def _end(self, reason: str, *, is_lost: bool = False) -> None:
        if self._dead_because is None or is_lost:
            self._dead_because, self._is_lost = reason, is_lost and not self._was_closed
        await asyncio.shield(self._pool.remove_later(self._container))

    def _on_event(self, head: Head) -> None:
        if "died" in head and self._dead_because is None:
            self._dead_because = str(head["died"])
            self._pool.remove_later(self._container)

    def _on_close(self) -> None:
        if not self._num_busy and self._dead_because is None:
            self._dead_because = "the connection to its container is gone"
            self._finding_out = asyncio.create_task(self._find_out())
