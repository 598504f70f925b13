"""What a program writes, read from a pipe up to a limit; the rest is read too, and thrown away."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

_CHUNK: Final = 1 << 16


class Capture:
    """One output stream.

    Args:
        max_bytes: How much is kept.
        flood_bytes: How much may be written at all.
        on_flood: Called once when more is written.
    """

    def __init__(self, max_bytes: int, flood_bytes: int, on_flood: Callable[[], None]) -> None:
        self._fd, self.writing = os.pipe2(os.O_CLOEXEC)
        os.fchmod(self.writing, 0o622)  # so that a program can open /dev/stdout, too
        os.set_blocking(self._fd, False)
        self._max_bytes, self._flood_bytes, self.on_flood = max_bytes, flood_bytes, on_flood
        self._loop = asyncio.get_running_loop()
        self._is_listening = False
        self._kept = bytearray()
        self._num_bytes = 0
        self.is_truncated = self._is_resting = self._is_at_end = False

    def listen(self) -> None:
        """Read as it comes; the writing end is the program's alone from here on."""
        os.close(self.writing)
        self._loop.add_reader(self._fd, self._read)
        self._is_listening = True

    def take(self) -> tuple[bytes, bool]:
        """Return what was written since the last time, and whether some of it was thrown away."""
        while self._read():
            pass
        taken, self._kept = bytes(self._kept), bytearray()
        was_truncated, self.is_truncated = self.is_truncated, False
        self._num_bytes = 0
        return taken, was_truncated

    def rest(self) -> None:
        """From a flood on, read no more until `wake`: who writes then has to wait."""
        self._is_resting = True

    def wake(self) -> None:
        """Read again whatever comes, and count a flood anew."""
        self._is_resting = False
        self._num_bytes = 0
        if self._fd >= 0 and not self._is_listening and not self._is_at_end:
            self._loop.add_reader(self._fd, self._read)
            self._is_listening = True

    def close(self) -> None:
        """Read what is there, and stop; `take` still gives it."""
        while self._read():
            pass
        self._stop()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        if self._fd < 0:
            return False
        try:
            chunk = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._is_at_end = True
            self._stop()
            return False
        room = max(0, self._max_bytes - len(self._kept))
        self._kept += chunk[:room]
        self.is_truncated |= len(chunk) > room
        before, self._num_bytes = self._num_bytes, self._num_bytes + len(chunk)
        if before <= self._flood_bytes < self._num_bytes:
            self.on_flood()
        if self._is_resting and self._num_bytes > self._flood_bytes:
            self._stop()
        return self._num_bytes <= self._flood_bytes

    def _stop(self) -> None:
        if self._is_listening:
            self._loop.remove_reader(self._fd)
            self._is_listening = False
