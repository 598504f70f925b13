"""CPU seconds of everything that a benchmark sets going, whoever forked it and whether it still lives."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

_VERSION_1 = Path("/sys/fs/cgroup/cpuacct")
_VERSION_2 = Path("/sys/fs/cgroup")
_IDLE_S = 1.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Meter(Protocol):
    """What counts CPU time."""

    how: str

    def seconds(self) -> float:
        """Return the CPU seconds so far."""


class GroupMeter:
    """A control group of its own: exact, and it counts all that is forked in it, dead or alive."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / ("cpuacct.usage" if (folder / "cpuacct.usage").exists() else "cpu.stat")
        self.how = f"control group of the benchmark ({self._file.name})"

    def seconds(self) -> float:
        if self._file.name == "cpuacct.usage":
            return int(self._file.read_text()) / 1e9
        return int(self._file.read_text().split()[1]) / 1e6  # usage_usec


class MachineMeter:
    """The whole machine, less what it does when it is let alone: for daemons that are nobody's children here."""

    def __init__(self) -> None:
        began, busy = time.monotonic(), _busy_s()
        time.sleep(_IDLE_S)
        self._share = (_busy_s() - busy) / (time.monotonic() - began)
        self._began = time.monotonic()
        self.how = f"whole machine, less the {self._share:.2f} processors that were busy before"

    def seconds(self) -> float:
        return _busy_s() - self._share * (time.monotonic() - self._began)


def _busy_s() -> float:
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) * _TICK_S


@contextlib.contextmanager
def meter() -> Iterator[Meter]:
    """Give the best meter there is: a control group of this process, else the machine; enter it before all else."""
    parent = _VERSION_1 if _VERSION_1.is_dir() else _VERSION_2
    folder = parent / f"benchmark-{os.getpid()}"
    try:
        before = _own_group(parent)
        folder.mkdir()
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield MachineMeter()
        return
    try:
        yield GroupMeter(folder)
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):  # children that are just ending
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.02)


def _own_group(parent: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpuacct" in controllers.split(","):
            group = parent / path.lstrip("/")
            if (parent is _VERSION_1) == ("cpuacct" in controllers.split(",")):
                return group
    return parent
