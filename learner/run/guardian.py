"""A small process that outlives a killed driver just long enough to end what the driver left running.

Ray's own processes notice a dead driver, but some of them wait a minute for servers that died with it.
It runs as a script, on the standard library alone, so that it starts at once and holds no memory.
"""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

MARK = "TURNGYM_GUARDED_BY"  # in the environment of every process that the driver begins
_ENDED = b"ended"


class Guardian:
    """Watches this process from the outside; from now on all processes begun here carry its mark.

    When this process is gone without `dismiss`, all marked processes are killed. Linux only: elsewhere
    nothing is found to kill.
    """

    def __init__(self) -> None:
        mark = uuid.uuid4().hex
        # A session of its own: the terminal's Ctrl-C is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._before = os.environ.get(MARK)
        os.environ[MARK] = mark
        # A process that renames itself (Ray's do) must not write its new name over its environment.
        os.environ["SPT_NOENV"] = "1"

    @property
    def pid(self) -> int:
        """The process that watches."""
        return self._process.pid

    def dismiss(self, timeout_s: float = 5.0) -> None:
        """End the watch: whoever still runs is no longer killed."""
        os.environ.pop(MARK, None)
        if self._before is not None:
            os.environ[MARK] = self._before
        try:
            self._process.communicate(_ENDED, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def kill_marked(mark: str) -> None:
    """Kill every process that carries the mark, until a look finds none that was not told yet."""
    told: set[int] = set()
    while found := {pid for pid in _processes() if _carries(pid, mark)} - told:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        told |= found


def _processes() -> list[int]:
    numbers = [entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(number) for number in numbers if int(number) != os.getpid()]


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or is another user's
        return False
    return f"{MARK}={mark}".encode() in environment.split(b"\0")


def _watch(mark: str) -> None:
    """Wait for the driver's word or its end."""
    if sys.stdin.buffer.read() != _ENDED:  # ends when the driver does: nobody else holds the other end
        kill_marked(mark)


if __name__ == "__main__":
    _watch(sys.argv[1])
