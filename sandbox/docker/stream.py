"""The supervisor's end of the connection to a container's runner, served by the event loop without a thread."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from ...errors import ProgramError, SandboxError
from .inside.frames import FrameError, Unpacker, pack

_DOCKER_HEADER = struct.Struct(">BxxxI")  # which stream, and how many bytes of it follow
_STDOUT, _STDERR = 1, 2
_MAX_DOCKER_BYTES = 1 << 20  # of one piece; the daemon sends at most 32 KiB
_MAX_STDERR_BYTES = 4096
_MAX_FRAME_BYTES = 4 << 20

Head = dict[str, Any]  # Any: JSON


class ChannelError(SandboxError):
    """The runner did not answer, or the connection is gone."""

    is_silent = False


class SilentError(ChannelError):
    """The runner did not answer in time."""

    is_silent = True


class Channel(asyncio.Protocol):
    """Requests and replies over a container's attach socket, many at once."""

    def __init__(self) -> None:
        self.on_event: Callable[[Head], None] = lambda head: None
        """Called with what the runner says unasked."""
        self.on_close: Callable[[], None] = lambda: None
        """Called once, when the connection is gone."""
        self._transport: asyncio.Transport | None = None
        self._docker_buffer = bytearray()
        self._unpacker = Unpacker(_MAX_FRAME_BYTES)
        self._stderr = b""
        self._num_calls = 0
        self._calls: dict[int, _Call] = {}
        self._closed_because: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and self._closed_because is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take the daemon's pieces apart and hand the frames in them to the calls that wait for them."""
        self._docker_buffer += data
        try:
            while len(self._docker_buffer) >= _DOCKER_HEADER.size:
                stream, num_bytes = _DOCKER_HEADER.unpack_from(self._docker_buffer)
                if stream not in (_STDOUT, _STDERR) or num_bytes > _MAX_DOCKER_BYTES:
                    raise FrameError(f"the daemon sent {num_bytes:,} bytes of stream {stream}")
                end = _DOCKER_HEADER.size + num_bytes
                if len(self._docker_buffer) < end:
                    return
                piece = bytes(self._docker_buffer[_DOCKER_HEADER.size : end])
                del self._docker_buffer[:end]
                if stream == _STDERR:
                    self._stderr = (self._stderr + piece)[-_MAX_STDERR_BYTES:]
                    continue
                for head, blob in self._unpacker.feed(piece):
                    self._deliver(head, blob)
        except FrameError as error:
            self.close(f"the runner broke the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self.close(f"the connection to the container is gone{f': {exc}' if exc else ''}")

    def close(self, reason: str = "closed") -> None:
        """Fail all calls, and let the runner end; a second call does nothing."""
        if self._closed_because is not None:
            return
        said = self._stderr.decode(errors="replace").strip()
        self._closed_because = f"{reason}; the runner said: {said}" if said else reason
        if self._transport:
            self._transport.abort()
        for call in self._calls.values():
            call.fail(ChannelError(self._closed_because))
        self._calls.clear()
        self.on_close()

    def write(self, data: bytes) -> None:
        """Send bytes that are no request: the runner itself."""
        if self._transport and self._closed_because is None:
            self._transport.write(data)

    async def call(
        self, op: str, blob: bytes = b"", *, deadline_s: float, max_reply_bytes: int = 1 << 20, **fields: Any
    ) -> tuple[Head, bytes]:
        """Send a request and return the head of its last reply and the blobs of all.

        Raises:
            ProgramError: The runner refused, for a reason of the program's or the caller's.
            SandboxError: The runner failed.
            ChannelError: It did not answer, or is gone.
        """
        if self._transport is None or self._closed_because is not None:
            raise ChannelError(self._closed_because or "not connected")
        self._num_calls += 1
        number = self._num_calls
        call = self._calls[number] = _Call(max_reply_bytes)
        self._unpacker.max_bytes = max(self._unpacker.max_bytes, max_reply_bytes + _MAX_FRAME_BYTES)
        self._transport.write(pack({"id": number, "op": op, **fields}, blob))
        try:
            async with asyncio.timeout(deadline_s):
                head = await call.future
        except TimeoutError:
            raise SilentError(f"the runner did not answer {op!r} within {deadline_s:g} s") from None
        finally:
            self._calls.pop(number, None)
        if "refused" in head:
            raise ProgramError(str(head["refused"]))
        if "failed" in head:
            raise SandboxError(f"the runner failed to {op}: {head['failed']}")
        return head, bytes(call.blob)

    def _deliver(self, head: Head, blob: bytes) -> None:
        if head.get("id") == 0:
            self.on_event(head)
            return
        call = self._calls.get(head.get("id", -1))
        if call is None:
            return  # it was cancelled or timed out
        call.blob += blob
        if len(call.blob) > call.max_bytes:
            raise FrameError(f"a reply of more than {call.max_bytes:,} bytes")
        if head.get("is_last") and not call.future.done():
            call.future.set_result(head)


class _Call:
    """A request on its way."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.blob = bytearray()
        self.future: asyncio.Future[Head] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
