"""The supervisor's end of one interpreter: cells go in, replies come out, none of which is believed."""

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from ..limits import Limits
from . import wire
from .capture import Capture

_MAX_REPLY: Final = 1 << 18


class Interpreter:
    """One interpreter and its two output streams.

    Attributes:
        is_alive: Whether it still answers.
        waiting: The future of the reply that is waited for.
    """

    def __init__(self, sock: socket.socket, out: Capture, err: Capture, *, is_python: bool) -> None:
        sock.setblocking(False)
        self.sock, self.out, self.err, self.is_python = sock, out, err, is_python
        self.is_alive = True
        self._loop = asyncio.get_running_loop()
        self.waiting: asyncio.Future[dict[str, Any] | None] | None = None
        self._buffer = b""
        self._sending: asyncio.Future[None] | None = None
        self._loop.add_reader(sock, self._receive)

    def tell(self, body: dict[str, Any], blobs: Sequence[bytes] = (), fds: Sequence[int] = ()) -> None:
        """Send a Python interpreter something; one that is gone answers None."""
        try:
            wire.send(self.sock, body, blobs, fds)
        except OSError:
            self.end()

    async def tell_shell(self, code: str) -> None:
        """Send bash a cell; `end` gives up on a bash that does not read it."""
        if not self.is_alive:
            return
        sending = self._sending = asyncio.ensure_future(self._loop.sock_sendall(self.sock, code.encode() + b"\0"))
        try:
            await asyncio.wait({sending})
        finally:
            sending.cancel()
            self._sending = None
        if not sending.cancelled() and isinstance(sending.exception(), OSError):
            self.end()

    def expect(self) -> "asyncio.Future[dict[str, Any] | None]":
        """Return the next reply's future."""
        self.waiting = self._loop.create_future()
        if not self.is_alive:
            self.waiting.set_result(None)
        return self.waiting

    def end(self) -> None:
        """Take it for gone."""
        if self.is_alive:
            self.is_alive = False
            self._loop.remove_reader(self.sock)
            # Else it would wait for ever, and the loop would keep the number of a closed socket.
            if self._sending is not None:
                self._loop.remove_writer(self.sock)
                self._sending.cancel()
            self.sock.close()
        self._answer(None)

    def close_streams(self) -> None:
        """Stop reading what it writes."""
        self.out.close()
        self.err.close()

    def _answer(self, reply: dict[str, Any] | None) -> None:
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def _receive(self) -> None:
        try:
            data = self.sock.recv(_MAX_REPLY)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self.waiting is None or not data:  # who answers unasked could keep this loop busy for ever
            self.end()
            return
        reply = _parse(data) if self.is_python else self._parse_code(data)
        if reply is not None:
            self._answer(reply)
        elif self.is_python or not self._buffer or len(self._buffer) > 64:
            self.end()

    def _parse_code(self, data: bytes) -> dict[str, Any] | None:
        """Return bash's exit code once it is whole."""
        self._buffer += data
        text, separator, self._buffer = self._buffer.partition(b"\0")
        if not separator:
            self._buffer = text
            return None
        return {"op": "done", "code": int(text)} if text.isdigit() and len(text) <= 3 else None


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        reply = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict) or not all(value is None or isinstance(value, str) for value in reply.values()):
        return None
    return reply


def new_interpreter(limits: Limits, *, is_python: bool) -> tuple[Interpreter, list[int]]:
    """Return our end, and the descriptors of control, stdout and stderr for the other."""
    kind = socket.SOCK_SEQPACKET if is_python else socket.SOCK_STREAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    out, err = (Capture(limits.output_bytes, limits.flood_bytes, lambda: None) for _ in range(2))
    return Interpreter(ours, out, err, is_python=is_python), [theirs.detach(), out.writing, err.writing]


def release(interpreter: Interpreter, ends: list[int]) -> None:
    """Close the other end's descriptors here, and begin to read what comes out of them."""
    if ends:
        os.close(ends[0])
        interpreter.out.listen()
        interpreter.err.listen()
        ends.clear()
