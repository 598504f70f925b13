"""What a hostile program is, and what may come of running it."""

from dataclasses import dataclass
from textwrap import dedent
from typing import Literal

from ..limits import Limits
from ..results import Ended, ExecResult

Kind = Literal["time", "memory", "processes", "introspection", "filesystem", "network", "output", "exit"]


BRIEF = Limits(wall_s=6.0)
"""For programs that end by themselves."""
ENDLESS = Limits(wall_s=0.8)
"""For programs that do not."""
SMALL = Limits(wall_s=6.0, memory_bytes=128 << 20, disk_bytes=16 << 20, num_inodes=1024, num_open_files=128)
"""For programs that take all they can get."""


@dataclass(frozen=True)
class Outcome:
    """One way in which a program may rightly end; what is None may be anything."""

    ended: Ended
    exit_code: int | None = None
    signal: int | None = None
    out: bytes | None = None
    """All that it wrote to stdout."""
    out_has: bytes | None = None
    err_has: bytes | None = None
    is_out_truncated: bool | None = None
    is_err_truncated: bool | None = None
    within_s: float | None = None
    """It must have ended in less wall time."""

    def mismatch(self, result: ExecResult) -> str | None:
        """Return how a result differs from this outcome, None if it does not."""
        for name in ("ended", "exit_code", "signal", "out", "is_out_truncated", "is_err_truncated"):
            wanted, came = getattr(self, name), getattr(result, name)
            if wanted is not None and came != wanted:
                return f"{name} is {came!r:.200}, not {wanted!r:.200}"
        if self.out_has is not None and self.out_has not in result.out:
            return f"its output lacks {self.out_has!r}: {result.out!r:.200}"
        if self.err_has is not None and self.err_has not in result.err:
            return f"its stderr lacks {self.err_has!r}: {result.err[-200:]!r}"
        if self.within_s is not None and result.wall_s >= self.within_s:
            return f"it took {result.wall_s:.2f} s, not less than {self.within_s:g} s"
        return None


@dataclass(frozen=True)
class HostileProgram:
    """A program that a sandbox must withstand, and every outcome that shows that it did."""

    name: str
    kind: Kind
    code: str | None
    """Python; a run defines in it what `checks_host.Canaries` names."""
    outcomes: tuple[Outcome, ...]
    argv: tuple[str, ...] | None = None
    limits: Limits = BRIEF
    stdin: bytes = b""

    def judge(self, result: ExecResult) -> str | None:
        """Return why the result is none of the outcomes, None if it is one."""
        mismatches = [outcome.mismatch(result) for outcome in self.outcomes]
        if None in mismatches:
            return None
        err = f"; stderr ends with {result.err[-300:]!r}" if result.err else ""
        return " and ".join(str(mismatch) for mismatch in dict.fromkeys(mismatches)) + err


TIMEOUT = Outcome("timeout")
HELD = Outcome("ok", out=b"held\n")
OUT_OF_MEMORY = (Outcome("memory"), Outcome("nonzero", exit_code=1, err_has=b"MemoryError"))


def python(
    name: str, kind: Kind, code: str, *outcomes: Outcome, limits: Limits = BRIEF, stdin: bytes = b""
) -> HostileProgram:
    """Return a Python program."""
    return HostileProgram(name, kind, dedent(code).strip() + "\n", outcomes, limits=limits, stdin=stdin)


def shell(name: str, kind: Kind, command: str, *outcomes: Outcome, limits: Limits = BRIEF) -> HostileProgram:
    """Return a bash command."""
    return HostileProgram(name, kind, None, outcomes, argv=("bash", "-c", command), limits=limits)
