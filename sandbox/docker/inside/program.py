"""Run one program to its end and say how it ended."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from .loop import Capture, Feed, Loop
from .memory import kill_cause, kill_count, peak_bytes
from .spawn import Outcome, Rules, descendants, spawn

_MAX_DRAIN_S = 0.5  # for what is still in the pipes of killed processes
_MAX_KILL_ROUNDS = 20
_COUNTED_SHARE = 0.5  # the limit counts ticks, the account time: on a busy machine they are far apart


class Program:
    """One running program; `on_end` gets the head and the blob of its reply.

    Args:
        order: argv, wall_s, output_bytes, flood_bytes, and is_alone: whether everything else that runs in the
            container is this program's, too.
    """

    def __init__(
        self,
        loop: Loop,
        order: dict[str, Any],
        stdin: bytes,
        environment: dict[str, str],
        folder: str,
        rules: Rules,
        on_end: Callable[[dict[str, Any], bytes], None],
    ) -> None:
        self._loop = loop
        self._is_alone = bool(order["is_alone"])
        self._flood_bytes = order["flood_bytes"]
        self._rules = rules
        self._on_end = on_end
        self.is_running = False
        self._cause: str | None = None
        self._outcome: Outcome | None = None
        self._memory_kills = kill_count()
        self._begin = time.monotonic()
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._out = Capture(loop, out_read, self._check)
        self._err = Capture(loop, err_read, self._check)
        self._out.restart(order["output_bytes"])
        self._err.restart(order["output_bytes"])
        self._stdin = Feed(loop, in_write, closes=True)
        for fd in (in_read, out_write, err_write):
            os.fchmod(fd, 0o666)  # the program may open /dev/stdout, and the pipe is ours
        try:
            descriptors = {0: in_read, 1: out_write, 2: err_write}
            self._pid = spawn(order["argv"], descriptors, environment, folder, rules)
        except OSError as error:
            self._close_pipes()
            on_end(*not_started(error))
            return
        finally:
            for fd in (in_read, out_write, err_write):
                os.close(fd)
        self.is_running = True
        self._timer = loop.after(order["wall_s"], lambda: self.kill("timeout"))
        loop.expect(self._pid, self._ended)
        self._stdin.send(stdin)

    def _check(self) -> None:
        if self._out.num_bytes + self._err.num_bytes > self._flood_bytes:
            self.kill("output")
        if self._outcome and not (self._out.is_open or self._err.is_open):
            self._finish()

    def kill(self, cause: str) -> None:
        """End it, for a cause that becomes how it ended."""
        if self._outcome is None and self._cause is None:
            self._cause = cause
            kill_program(self._pid, is_alone=self._is_alone)

    def _ended(self, outcome: Outcome) -> None:
        self._wall_s = time.monotonic() - self._begin
        self._outcome = outcome
        self._loop.cancel(self._timer)
        if self._is_alone:
            kill_program(self._pid, is_alone=True)
            self._timer = self._loop.after(_MAX_DRAIN_S, self._finish)
            self._check()
        else:  # what it left running may hold its pipes for ever
            self._out.drain()
            self._err.drain()
            self._finish()

    def _finish(self) -> None:
        if self._outcome is None:
            return
        outcome, self._outcome = self._outcome, None
        self.is_running = False
        self._loop.cancel(self._timer)
        self._close_pipes()
        ended = self._how(outcome)
        head = {
            "ended": ended,
            "exit_code": outcome.exit_code if ended in ("ok", "nonzero") else None,
            "signal": outcome.signal if ended == "signal" else None,
            "wall_s": self._wall_s,
            "cpu_s": outcome.cpu_s,
            "peak_bytes": (peak_bytes() if self._is_alone else None) or outcome.max_rss_bytes,
            "num_out": len(self._out.kept),
            "is_out_truncated": self._out.num_bytes > len(self._out.kept),
            "is_err_truncated": self._err.num_bytes > len(self._err.kept),
        }
        self._on_end(head, bytes(self._out.kept + self._err.kept))

    def _how(self, outcome: Outcome) -> str:
        if self._cause and outcome.exit_code is None:
            return self._cause
        if outcome.exit_code == 0:
            return "ok"
        cause = kill_cause(self._memory_kills)
        if cause is not None:
            return cause
        if outcome.exit_code is not None:
            return "nonzero"
        limit_s = self._rules.cpu_s
        is_late = limit_s is not None and outcome.cpu_s >= limit_s * _COUNTED_SHARE
        return "timeout" if is_late and outcome.signal in (signal.SIGKILL, signal.SIGXCPU) else "signal"

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._out.close()
        self._err.close()


def kill_program(pid: int, *, is_alone: bool) -> None:
    """Kill a program with all that it started; alone in the container, with all but the runner."""
    if is_alone:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        return
    for _ in range(_MAX_KILL_ROUNDS):  # they may be starting others
        living = descendants(pid)
        if not living:
            return
        for each in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def not_started(error: OSError) -> tuple[dict[str, Any], bytes]:
    """Return the reply for a program that could not be started, as a shell would put it."""
    name = str(error.filename)
    is_missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    text = f"{name}: {'command not found' if is_missing else error.strerror}\n".encode(errors="surrogateescape")
    is_forbidden = error.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM)
    head: dict[str, Any] = {
        "ended": "nonzero" if is_missing or is_forbidden else "killed",  # no process is left, for one
        "exit_code": 127 if is_missing else 126 if is_forbidden else None,
        "signal": None,
        "wall_s": 0.0,
        "cpu_s": 0.0,
        "peak_bytes": None,
        "num_out": 0,
        "is_out_truncated": False,
        "is_err_truncated": False,
    }
    return head, text
