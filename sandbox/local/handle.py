"""The supervisor's end of one jail: requests and replies over its socket, its control group, and its end."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from ...errors import DeadlineError, ProgramError, SandboxDeadError, SandboxError
from ..limits import Limits
from . import wire
from .cgroups import Group, OomCount

_CLOSE_S: Final = 5.0


class Channel:
    """Requests and their replies over one socket, from an event loop, and what comes unasked."""

    def __init__(self, sock: socket.socket, name: str, on_event: Callable[[wire.Message], None] | None = None) -> None:
        """Listen to the socket; `on_event` takes what answers no request."""
        sock.setblocking(False)
        self._sock, self._name, self._on_event = sock, name, on_event
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[wire.Message]] = {}
        self._num_requests = 0
        self._why_closed: str | None = None
        self._loop.add_reader(sock, self._receive)

    @property
    def is_open(self) -> bool:
        """Whether the other end was there when it was last heard of."""
        return self._why_closed is None

    @property
    def last_request(self) -> int:
        """The number of the latest request."""
        return self._num_requests

    def send(self, body: dict[str, Any], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()) -> None:
        """Send something that is not answered.

        Raises:
            SandboxDeadError: The other end is gone.
        """
        if self._why_closed is not None:
            raise SandboxDeadError(f"{self._name} is gone: {self._why_closed}")
        try:
            wire.send(self._sock, body, blobs, fds)
        except OSError as error:
            self.close(str(error))
            raise SandboxDeadError(f"{self._name} is gone: {error}") from error

    def ask(
        self, body: dict[str, Any], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()
    ) -> asyncio.Future[wire.Message]:
        """Send a request; the future is its reply."""
        self._num_requests += 1
        self.send(body | {"request": self._num_requests}, blobs, fds)
        return self.expect(self._num_requests)

    def expect(self, request: int = 0) -> asyncio.Future[wire.Message]:
        """Return the reply's future; 0 stands for what the other end says at its start."""
        self._waiting[request] = self._loop.create_future()
        return self._waiting[request]

    def close(self, why: str = "it was closed") -> None:
        """Stop listening; who waits gets an error."""
        if self._why_closed is not None:
            return
        self._why_closed = why
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxDeadError(f"{self._name} is gone: {why}"))
                waiting.exception()  # nobody may be waiting any more
        self._waiting.clear()

    def _receive(self) -> None:
        try:
            message = wire.receive(self._sock)
        except BlockingIOError:
            return
        except (EOFError, OSError, ValueError) as error:
            self.close(str(error))
            return
        waiting = self._waiting.pop(message.body.get("request", 0), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
            return
        for fd in message.fds:
            os.close(fd)
        if self._on_event is not None:
            self._on_event(message)


def reply_of(message: wire.Message, name: str) -> wire.Message:
    """Return a reply that is none of failure.

    Raises:
        ProgramError: What was asked cannot be done.
        SandboxError: It failed.
    """
    if message.body["op"] == "refused":
        raise ProgramError(str(message.body["why"]))
    if message.body["op"] in ("failed", "not_forked"):
        raise SandboxError(f"{name} failed: {message.body['why']}")
    return message


class JailHandle:
    """One jail.

    Attributes:
        channel: To its init.
        group: Its control group, where there are any.
        num_uses: Programs and sessions it has had.
        forking: Held while one of its interpreters is forked.
        on_gone: Called with the number of a branch whose interpreter is gone, and its wait status.
    """

    def __init__(self, sock: socket.socket, pid: int, pid_fd: int, group: Group | None, folder: str | None) -> None:
        self.channel = Channel(sock, "a jail of the local sandbox", self._on_event)
        self.pid, self._pid_fd = pid, pid_fd
        self.group, self.folder = group, folder
        self.num_uses = 0
        self.has_proc = True
        self.forking = asyncio.Lock()
        self.on_gone: Callable[[int, int], None] | None = None

    async def ask(
        self, body: dict[str, Any], blobs: Sequence[bytes] = (), fds: Sequence[int] = (), *, timeout_s: float
    ) -> wire.Message:
        """Make a request of the init, which answers by itself, whatever programs do.

        Raises:
            ProgramError: What was asked cannot be done.
            SandboxError: The jail failed or is gone; after a deadline it is killed.
        """
        reply = self.channel.ask(body, blobs, fds)
        try:
            async with asyncio.timeout(timeout_s):
                return reply_of(await reply, "a jail of the local sandbox")
        except (TimeoutError, asyncio.CancelledError) as error:
            self.kill()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise SandboxError(
                f"a jail did not answer {body['op']!r} within {timeout_s:g} s, and was killed"
            ) from error

    async def limit(self, limits: Limits, *, timeout_s: float) -> None:
        """Limit what all programs of a jail that runs nothing may use together.

        The files of the program before go first: they are memory, and the kernel refuses a limit below what is in use,
        or kills the init to reach it.

        Raises:
            SandboxError: The jail failed, or the kernel refuses.
        """
        if self.group is None or self.group.is_limited(limits.memory_bytes, limits.num_processes):
            return
        await self.ask({"op": "clear", "disk": [limits.disk_bytes, limits.num_inodes]}, timeout_s=timeout_s)
        self.group.limit(limits.memory_bytes, limits.num_processes)

    def limit_branches(self, limits: Limits, num_branches: int) -> None:
        """Limit what a session and its forks may use together.

        Raises:
            SandboxError: The kernel refuses; more may be in use already.
        """
        if self.group is not None:
            self.group.limit(limits.memory_bytes * num_branches, limits.num_processes * num_branches)

    def oom_count(self, *, is_idle: bool = False) -> OomCount:
        """Return what the kernel has killed for want of memory; nothing without a control group.

        Args:
            is_idle: Nothing runs that may yet be blamed for what was killed so far.
        """
        if self.group is None:
            return OomCount()
        count = self.group.oom_count()
        if is_idle:
            self.group.forget_peak(count)
        return count

    def oom_cause(self, before: OomCount) -> Literal["limit", "machine"] | None:
        """Return what the kernel has killed for since then; see `Group.oom_cause`."""
        return None if self.group is None else self.group.oom_cause(before)

    def kill(self) -> None:
        """Kill the init, and with it everything in the jail; what it held is freed by `destroy`."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
        self.channel.close("it was killed")

    async def destroy(self) -> None:
        """Kill it, wait until it is gone, and free what it held.

        Raises:
            DeadlineError: It does not end.
        """
        self.kill()
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pid_fd, _settle, gone)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(gone)
        except TimeoutError as error:
            raise DeadlineError(f"jail {self.pid} does not end within {_CLOSE_S:g} s of SIGKILL") from error
        finally:
            loop.remove_reader(self._pid_fd)
            os.close(self._pid_fd)
            if self.group is not None:
                await loop.run_in_executor(None, self.group.remove)
            if self.folder is not None:
                await loop.run_in_executor(None, shutil.rmtree, self.folder)

    def _on_event(self, message: wire.Message) -> None:
        if message.body["op"] == "gone" and self.on_gone is not None:
            self.on_gone(message.body["branch"], message.body["status"])


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
