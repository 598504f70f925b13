"""Frames between the supervisor and the runner in the container: a head, which is JSON, and a blob of bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_LENGTHS = struct.Struct(">II")


class FrameError(ValueError):
    """What came is no frame."""


def pack(head: dict[str, Any], blob: bytes = b"") -> bytes:
    """Return one frame."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(blob)) + text + blob


class Unpacker:
    """Puts frames together from pieces of a stream.

    Args:
        max_bytes: Of one frame; a longer one is an error before it is read.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield the frames that this piece completes.

        Raises:
            FrameError: A frame is too long, or its head is no JSON object.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            num_head, num_blob = _LENGTHS.unpack_from(self._buffer)
            if num_head + num_blob > self.max_bytes:
                raise FrameError(f"a frame of {num_head + num_blob:,} bytes, and {self.max_bytes:,} are allowed")
            start, end = _LENGTHS.size + num_head, _LENGTHS.size + num_head + num_blob
            if len(self._buffer) < end:
                return
            text, blob = bytes(self._buffer[_LENGTHS.size : start]), bytes(self._buffer[start:end])
            del self._buffer[:end]
            yield _parse(text), blob


def _parse(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame whose head is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise FrameError(f"wanted a JSON object as the head of a frame, got {type(head).__name__}")
    return head
