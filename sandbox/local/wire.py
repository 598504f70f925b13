"""Messages between supervisor, zygote and jails: JSON, blobs and descriptors in one packet of a unix socket.

What does not fit into a packet travels in a memory file, whose descriptor comes first.
"""

import json
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

INLINE_BYTES: Final = 96 << 10
_LENGTH = struct.Struct("=I")
_MAX_FDS: Final = 8


@dataclass(frozen=True)
class Message:
    """What came: the JSON object, its blobs, and descriptors that the receiver must close."""

    body: dict[str, Any]  # Any: each kind of message has its own keys, named where it is sent
    blobs: list[bytes]
    fds: list[int]


def memory_file(content: bytes) -> int:
    """Return the descriptor of a memory file with this content, at its beginning."""
    fd = os.memfd_create("turngym", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def send(sock: socket.socket, body: dict[str, Any], blobs: Sequence[bytes] = (), fds: Iterable[int] = ()) -> None:
    """Send one message; its descriptors stay open here."""
    head = json.dumps(body | {"sizes": [len(blob) for blob in blobs]}).encode()
    packet = b"".join([_LENGTH.pack(len(head)), head, *blobs])
    if len(packet) <= INLINE_BYTES:
        socket.send_fds(sock, [b"i", packet], list(fds))
        return
    fd = memory_file(packet)
    try:
        socket.send_fds(sock, [b"m"], [fd, *fds])
    finally:
        os.close(fd)


def receive(sock: socket.socket) -> Message:
    """Receive one message.

    Raises:
        EOFError: The other end is gone.
        ValueError: What came is no message.
    """
    packet, fds, _, _ = socket.recv_fds(sock, INLINE_BYTES + 1, _MAX_FDS)
    if not packet:
        raise EOFError("the other end closed the connection")
    try:
        if packet[:1] == b"m":
            packet = b"m" + _read_all(fds.pop(0))
        (length,) = _LENGTH.unpack_from(packet, 1)
        start = 1 + _LENGTH.size + length
        body = json.loads(packet[1 + _LENGTH.size : start])
        blobs = []
        for size in body.pop("sizes"):
            blobs.append(packet[start : start + size])
            start += size
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        for fd in fds:
            os.close(fd)
        raise ValueError(f"a broken message: {error!r}") from error
    return Message(body, blobs, fds)


def _read_all(fd: int) -> bytes:
    try:
        size = os.fstat(fd).st_size
        content = bytearray()
        while len(content) < size:
            chunk = os.pread(fd, size - len(content), len(content))
            if not chunk:
                break
            content += chunk
        return bytes(content)
    finally:
        os.close(fd)
