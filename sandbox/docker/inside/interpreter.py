"""The interpreter of a session and its cells, as the runner sees them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import time
from collections.abc import Callable
from typing import Any

from .loop import Capture, Feed, Loop
from .memory import kill_cause, kill_count
from .program import kill_program
from .spawn import Outcome, Rules, spawn

READY = "ready"
"""What an interpreter says, with a NUL, before it takes cells and interrupts."""
_LENGTH = struct.Struct(">I")
_MAX_REPLY_BYTES = 1 << 20
_INTERRUPT_EVERY_S = 0.3
_NUM_INTERRUPTS = 5  # then an interpreter past its time is killed


class Interpreter:
    """A process that runs one cell after the other.

    Args:
        order: argv, language, and the numbers that requests and replies have in the process.
        on_ready: Called when it can take cells.
        on_death: Called when it ends while no cell is running.
    """

    def __init__(
        self,
        loop: Loop,
        order: dict[str, Any],
        environment: dict[str, str],
        folder: str,
        rules: Rules,
        on_ready: Callable[[], None],
        on_death: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._is_shell = order["language"] == "bash"
        self._on_ready: Callable[[], None] | None = on_ready
        self._on_death = on_death
        self._on_end: Callable[[dict[str, Any], bytes], None] | None = None
        self.is_alive = True
        self._cause: str | None = None
        self._timer = 0
        in_read, in_write = os.pipe()
        reply_read, reply_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        for fd in (out_write, err_write):
            os.fchmod(fd, 0o666)  # cells may open /dev/stdout, and the pipe is ours
        null = os.open(os.devnull, os.O_RDONLY)
        descriptors = {0: null, 1: out_write, 2: err_write, order["requests"]: in_read, order["replies"]: reply_write}
        try:
            self._pid = spawn(order["argv"], descriptors, environment, folder, rules)
        finally:
            for fd in descriptors.values():
                os.close(fd)
        self._out = Capture(loop, out_read, self._check)
        self._err = Capture(loop, err_read, self._check)
        self._feed = Feed(loop, in_write, closes=False)
        self._replies = Capture(loop, reply_read, self._answered)
        self._replies.restart(_MAX_REPLY_BYTES)
        loop.expect(self._pid, self._ended)

    def run_cell(self, order: dict[str, Any], code: bytes, on_end: Callable[[dict[str, Any], bytes], None]) -> None:
        """Run a cell: timeout_s, output_bytes, flood_bytes."""
        self._on_end = on_end
        self._cause = None
        self._flood_bytes = order["flood_bytes"]
        for capture in (self._out, self._err):  # what came since the last cell belongs to this one
            capture.max_bytes = order["output_bytes"]
        self._memory_kills = kill_count()
        self._begin = time.monotonic()
        self._timer = self._loop.after(order["timeout_s"], lambda: self._interrupt("timeout", 0))
        self._feed.send(code + b"\0" if self._is_shell else _LENGTH.pack(len(code)) + code)

    def interrupt(self) -> None:
        """Interrupt the cell that is running, if one is."""
        if self._on_end and self._cause is None:
            self._loop.cancel(self._timer)
            self._interrupt("interrupted", 0)

    def _interrupt(self, cause: str, num_sent: int) -> None:
        self._cause = cause
        if num_sent < _NUM_INTERRUPTS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGINT)
            self._timer = self._loop.after(_INTERRUPT_EVERY_S, lambda: self._interrupt(cause, num_sent + 1))
        else:
            self._kill(cause)

    def _kill(self, cause: str) -> None:
        self._cause = cause
        kill_program(self._pid, is_alone=True)

    def _check(self) -> None:
        if self._on_end and self._out.num_bytes + self._err.num_bytes > self._flood_bytes:
            self._kill("output")

    def _answered(self) -> None:
        if self._on_ready:
            if self._replies.kept == READY.encode() + b"\0":
                on_ready, self._on_ready = self._on_ready, None
                self._replies.restart(_MAX_REPLY_BYTES)
                on_ready()
            return
        reply = self._parse(bytes(self._replies.kept))
        if reply is None:
            if self._replies.num_bytes > _MAX_REPLY_BYTES:
                self._kill("exited")
            return
        if self._on_end is None or not reply:
            self._kill("exited")  # an answer that nobody asked for, or none at all: it does as it likes
            return
        self._finish(reply, is_alive=True)

    def _parse(self, data: bytes) -> dict[str, Any] | None:
        """Return a complete reply, an empty one for nonsense, None for an incomplete one."""
        if self._is_shell:
            number, end, rest = data.partition(b"\0")
            if not end:
                return None
            if rest or not number.isdigit() or len(number) > 3:  # int() refuses very long ones
                return {}
            code = int(number)
            return {
                "ended": "error" if code else "ok",
                "exit_code": code,
                "error": f"exit code {code}" if code else None,
            }
        if len(data) < _LENGTH.size:
            return None
        (num_bytes,) = _LENGTH.unpack_from(data)
        if num_bytes > _MAX_REPLY_BYTES - _LENGTH.size:
            return {}
        if len(data) < _LENGTH.size + num_bytes:
            return None
        try:
            reply = json.loads(data[_LENGTH.size :])
        except (ValueError, RecursionError):
            return {}
        if not isinstance(reply, dict) or reply.get("ended") not in ("ok", "error", "interrupted"):
            return {}
        texts = {name: reply.get(name) for name in ("value", "error")}
        if not all(text is None or isinstance(text, str) for text in texts.values()):
            return {}
        return {"ended": reply["ended"], **texts}

    def _ended(self, outcome: Outcome) -> None:
        self.is_alive = False
        self._replies.drain()
        how = f"with exit code {outcome.exit_code}" if outcome.signal is None else f"by signal {outcome.signal}"
        text = f"the interpreter ended {how}"
        if self._on_end is None:
            self._on_death(text)
            return
        ended = self._cause
        if ended is None or ended == "interrupted":
            cause = kill_cause(self._memory_kills) if outcome.signal == signal.SIGKILL else None
            ended = cause or ended or "exited"
        self._finish({"ended": ended, "error": text, "exit_code": outcome.exit_code}, is_alive=False)

    def _finish(self, reply: dict[str, Any], *, is_alive: bool) -> None:
        self._loop.cancel(self._timer)
        self._out.drain()
        self._err.drain()
        if is_alive and self._out.num_bytes + self._err.num_bytes > self._flood_bytes:
            self._kill("output")
            return
        if is_alive and self._cause == "timeout":
            reply["ended"] = "timeout"
        elif is_alive and self._is_shell and self._cause:
            reply["ended"] = self._cause
        elif reply["ended"] == "interrupted" and self._cause is None:  # the cell raised it by itself
            reply["ended"] = "error"
        on_end, self._on_end = self._on_end, None
        assert on_end is not None
        head = {
            **reply,
            "wall_s": time.monotonic() - self._begin,
            "is_alive": is_alive,
            "num_out": len(self._out.kept),
            "is_out_truncated": self._out.num_bytes > len(self._out.kept),
            "is_err_truncated": self._err.num_bytes > len(self._err.kept),
        }
        blob = bytes(self._out.kept + self._err.kept)
        for capture in (self._out, self._err, self._replies):
            capture.restart(capture.max_bytes)
        on_end(head, blob)
