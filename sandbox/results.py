"""What sandboxes return: how a program or a cell ended and what it wrote, and what lies in a work folder."""

from dataclasses import dataclass
from typing import Literal

Ended = Literal["ok", "nonzero", "signal", "timeout", "memory", "output", "killed"]
"""How a program ended: by itself (ok, nonzero), by a signal of its own making (signal), at a limit (timeout: wall or
CPU time; memory: killed at the limit; output: it wrote more than `flood_bytes`), or by its own doing in another way, as
by breaking what runs it (killed)."""

CellEnded = Literal["ok", "error", "interrupted", "timeout", "memory", "output", "exited"]
"""How a cell ended: `exited` means that its interpreter is gone by its own doing, as by os._exit."""


class _Written:
    """What was written, as text."""

    out: bytes
    err: bytes

    @property
    def out_text(self) -> str:
        """What it wrote to stdout; what is not UTF-8 is replaced."""
        return self.out.decode(errors="replace")

    @property
    def err_text(self) -> str:
        """What it wrote to stderr; what is not UTF-8 is replaced."""
        return self.err.decode(errors="replace")


@dataclass(frozen=True)
class ExecResult(_Written):
    """How a program ended, and what it wrote."""

    ended: Ended
    exit_code: int | None
    """0 to 255; None unless it ended as ok or nonzero."""
    signal: int | None
    """The number of the signal that ended it, if one did."""
    out: bytes
    err: bytes
    is_out_truncated: bool
    is_err_truncated: bool
    wall_s: float
    cpu_s: float | None
    """Of all its processes that were waited for; None where nobody could tell."""
    peak_memory_bytes: int | None
    tier: str
    """How well it was isolated: the backend's `tier`."""

    @property
    def is_ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.ended == "ok"


@dataclass(frozen=True)
class CellResult(_Written):
    """What one cell of a session did."""

    ended: CellEnded
    out: bytes
    err: bytes
    value: str | None
    """repr of the last expression's value, if the cell ends with an expression whose value is not None (Python)."""
    error: str | None
    """The traceback, or what else is to be said about a cell that did not end as ok."""
    exit_code: int | None
    """Of the last command (shell); None for Python."""
    is_out_truncated: bool
    is_err_truncated: bool
    wall_s: float
    tier: str
    is_alive: bool
    """Whether the session goes on, with its variables; after False each further cell raises SandboxDeadError."""


@dataclass(frozen=True)
class FileInfo:
    """One entry below a session's work folder."""

    path: str
    """Relative to the work folder; what is not UTF-8 in it is escaped as Python does (surrogateescape)."""
    kind: Literal["file", "folder", "link", "other"]
    num_bytes: int
