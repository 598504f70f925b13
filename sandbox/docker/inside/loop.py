"""One thread that waits for descriptors, for children and for the clock."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable

from .spawn import Outcome, outcome_of

_MAX_READS = 16  # of one pipe before others get their turn


class Loop:
    """Calls back when a descriptor can be used, a child has ended, or a time has come."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._timers: dict[int, tuple[float, Callable[[], None]]] = {}
        self._children: dict[int, Callable[[Outcome], None]] = {}
        self._num_timers = 0
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._wake = wake_read
        self.watch(wake_read, self._reap)

    def watch(self, fd: int, callback: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call back whenever the descriptor is ready, until `unwatch`."""
        self._callbacks[fd] = callback
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Forget a descriptor; one that is not watched is no error."""
        if self._callbacks.pop(fd, None):
            self._poll.unregister(fd)

    def after(self, delay_s: float, callback: Callable[[], None]) -> int:
        """Call back once, later; return what `cancel` takes."""
        self._num_timers += 1
        self._timers[self._num_timers] = (time.monotonic() + delay_s, callback)
        return self._num_timers

    def cancel(self, timer: int) -> None:
        """Forget a timer; one that is gone is no error."""
        self._timers.pop(timer, None)

    def expect(self, pid: int, callback: Callable[[Outcome], None]) -> None:
        """Call back when a child has ended."""
        self._children[pid] = callback

    def run(self) -> None:
        """Go on for ever."""
        while True:
            wait_s = min((when for when, _ in self._timers.values()), default=None)
            timeout_ms = None if wait_s is None else max(0.0, wait_s - time.monotonic()) * 1000 + 1
            for fd, _ in self._poll.poll(timeout_ms):
                callback = self._callbacks.get(fd)
                if callback:
                    callback()
            now = time.monotonic()
            for timer, (when, callback) in sorted(self._timers.items()):
                if when <= now and timer in self._timers:
                    del self._timers[timer]
                    callback()

    def _reap(self) -> None:
        while True:  # empty the pipe before asking, so that no ending is missed
            try:
                if len(os.read(self._wake, 4096)) < 4096:
                    break
            except BlockingIOError:
                break
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            callback = self._children.pop(pid, None)
            if callback:  # the others are orphans of programs
                callback(outcome_of(status, usage))


class Capture:
    """What is kept of a pipe; the rest is counted and thrown away."""

    def __init__(self, loop: Loop, fd: int, on_data: Callable[[], None]) -> None:
        self.fd = fd
        self.kept = bytearray()
        self.num_bytes = 0
        self.max_bytes = 0
        self._loop = loop
        self._on_data = on_data
        self._is_open = True
        os.set_blocking(fd, False)
        loop.watch(fd, self._ready)

    def restart(self, max_bytes: int) -> None:
        """Forget what came, and keep so much of what comes."""
        self.kept.clear()
        self.num_bytes = 0
        self.max_bytes = max_bytes

    def drain(self) -> None:
        """Take what is there now."""
        for _ in range(_MAX_READS):
            if not self._is_open:
                return
            try:
                chunk = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                self.close()
                return
            self.num_bytes += len(chunk)
            self.kept += chunk[: max(0, self.max_bytes - len(self.kept))]

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return self._is_open

    def close(self) -> None:
        """Take nothing more."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self.fd)
            os.close(self.fd)

    def _ready(self) -> None:
        self.drain()
        self._on_data()


class Feed:
    """Writes to a pipe as fast as it is read; a reader that is gone is no error."""

    def __init__(self, loop: Loop, fd: int, *, closes: bool) -> None:
        self._loop = loop
        self._fd = fd
        self._closes = closes
        self._data = memoryview(b"")
        self._is_open = True
        os.set_blocking(fd, False)

    def send(self, data: bytes) -> None:
        """Begin to write; what was sent before must have been read."""
        self._data = memoryview(data)
        self._loop.watch(self._fd, self._ready, select.POLLOUT)
        self._ready()

    def close(self) -> None:
        """Write nothing more."""
        if self._is_open:
            self._is_open = False
            self._loop.unwatch(self._fd)
            os.close(self._fd)

    def _ready(self) -> None:
        if not self._is_open:
            return
        try:
            while self._data:
                self._data = self._data[os.write(self._fd, self._data) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self._closes:
            self.close()
        else:
            self._loop.unwatch(self._fd)
