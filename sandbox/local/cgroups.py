"""Control groups, version 1 or 2, where they can be written: memory and processes of a whole jail are limited."""

import itertools
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ...errors import SandboxError

_MOUNT: Final = Path("/sys/fs/cgroup")
_PREFIX: Final = "turngym-"
_REMOVE_TRIES: Final = 50
_REMOVE_WAIT_S: Final = 0.004
_OF_INIT: Final = 3
"""Processes of a jail's own: its init and what that forks to work for it."""
_BYTES_OF_INIT: Final = 24 << 20
_COUNT: Final = itertools.count()


@dataclass(frozen=True)
class _Names:
    """What one version calls its files."""

    memory_limit: str
    swap_limit: str
    oom_count: str


_VERSION_1: Final = _Names("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
_VERSION_2: Final = _Names("memory.max", "memory.swap.max", "memory.events")
_PEAK: Final = "memory.max_usage_in_bytes"
_NEAR_BYTES: Final = 1 << 20
"""So near to its limit has a group come for which the kernel kills; the largest piece that it kills for is 32 KiB."""


@dataclass(frozen=True)
class OomCount:
    """What the kernel has counted of a group since it exists."""

    kills: int = 0
    """Processes that were killed for want of memory, whoever lacked it."""
    limit_hits: int = 0
    """How often the group's own limit was the reason; version 1 does not count it."""


def start_time(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


class Group:
    """One jail's control group."""

    def __init__(self, memory: Path, pids: Path, names: _Names) -> None:
        self._folders = list(dict.fromkeys((memory, pids)))
        self._memory, self._pids, self._names = memory, pids, names
        self._limits: tuple[int, int] | None = None
        self._kills_of_peak = 0  # when the peak was set back
        for folder in self._folders:
            folder.mkdir()

    def add(self, pid: int) -> None:
        """Move a process into the group; its children follow."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def is_limited(self, memory_bytes: int, num_processes: int) -> bool:
        """Whether these limits are in force."""
        return self._limits == (memory_bytes, num_processes)

    def limit(self, memory_bytes: int, num_processes: int) -> None:
        """Limit what all its processes and their files in memory use together.

        Raises:
            SandboxError: The kernel refuses; more may be in use already.
        """
        if self.is_limited(memory_bytes, num_processes):
            return
        try:
            self._limit(memory_bytes, num_processes)
        except OSError as error:
            raise SandboxError(f"the control group {self._memory} cannot be limited: {error}") from error
        self._limits = (memory_bytes, num_processes)

    def _limit(self, memory_bytes: int, num_processes: int) -> None:
        (self._pids / "pids.max").write_text(str(num_processes + _OF_INIT))
        memory = self._memory / self._names.memory_limit
        swap = self._memory / self._names.swap_limit
        total = memory_bytes + _BYTES_OF_INIT
        if self._names is _VERSION_1:
            # Memory with swap must never be below memory alone, so which one goes first depends on the direction.
            files = [memory, swap] if swap.exists() else [memory]
            try:
                for file in files:
                    file.write_text(str(total))
            except OSError:
                for file in reversed(files):
                    file.write_text(str(total))
            (self._memory / _PEAK).write_text("0")
        else:
            memory.write_text(str(total))
            if swap.exists():
                swap.write_text("0")

    def oom_count(self) -> OomCount:
        """Return what was counted so far; nothing once the group is gone."""
        try:
            lines = (self._memory / self._names.oom_count).read_text().splitlines()
        except FileNotFoundError:
            return OomCount()
        numbers = dict(line.split() for line in lines)
        return OomCount(int(numbers.get("oom_kill", 0)), int(numbers.get("oom", 0)))

    def oom_cause(self, before: OomCount) -> Literal["limit", "machine"] | None:
        """Return what the kernel has killed for since then: the group's own limit, or memory that lacks around it."""
        now = self.oom_count()
        if now.kills <= before.kills:
            return None
        if self._names is _VERSION_1:
            was_limit = self._number(_PEAK) >= self._number(self._names.memory_limit) - _NEAR_BYTES
        else:
            was_limit = now.limit_hits > before.limit_hits
        return "limit" if was_limit else "machine"

    def forget_peak(self, now: OomCount) -> None:
        """Let what earlier programs used count no more for `oom_cause`, if the kernel killed for it."""
        if self._names is _VERSION_1 and now.kills > self._kills_of_peak:
            (self._memory / _PEAK).write_text("0")
            self._kills_of_peak = now.kills

    def _number(self, file: str) -> int:
        return int((self._memory / file).read_text())

    def remove(self) -> None:
        """Remove the group, once its processes are gone."""
        for folder in self._folders:
            for _ in range(_REMOVE_TRIES):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(_REMOVE_WAIT_S)


class Groups:
    """Where a supervisor makes its jails' groups."""

    def __init__(self, memory: Path, pids: Path, names: _Names) -> None:
        self._parents, self._names = (memory, pids), names
        self._mine = f"{_PREFIX}{os.getpid()}-{start_time(os.getpid())}-"

    @classmethod
    def find(cls) -> "Groups | None":
        """Return where groups can be made here; None where they cannot."""
        own = _own_groups()
        candidates = []
        if "memory" in own and "pids" in own:
            candidates.append((_MOUNT / "memory" / own["memory"], _MOUNT / "pids" / own["pids"], _VERSION_1))
            candidates.append((_MOUNT / "memory", _MOUNT / "pids", _VERSION_1))
        if "" in own:
            here = _MOUNT / own[""]
            candidates += [(folder, folder, _VERSION_2) for folder in (here, *here.parents) if folder >= _MOUNT]
        for memory, pids, names in candidates:
            groups = cls(memory, pids, names)
            if groups._works():
                return groups
        return None

    def make(self) -> Group:
        """Make one more group."""
        number = next(_COUNT)
        memory, pids = (folder / f"{self._mine}{number}" for folder in self._parents)
        return Group(memory, pids, self._names)

    def sweep(self) -> int:
        """Kill and remove what supervisors that no longer live have left; return how many groups."""
        swept = 0
        for parent in dict.fromkeys(self._parents):
            for folder in parent.glob(f"{_PREFIX}*-*-*"):
                pid, started, _ = folder.name.removeprefix(_PREFIX).split("-", 2)
                if pid.isdigit() and start_time(int(pid)) != started:
                    with suppress(OSError):
                        for member in (folder / "cgroup.procs").read_text().split():
                            os.kill(int(member), 9)
                    Group.remove(_leftover(folder))
                    swept += 1
        return swept

    def _works(self) -> bool:
        try:
            group = self.make()
        except OSError:
            return False
        try:
            group.limit(64 << 20, 16)
            group.oom_count()
        except (OSError, SandboxError):
            return False
        finally:
            group.remove()
        return True


def _leftover(folder: Path) -> Group:
    group = Group.__new__(Group)
    group._folders = [folder]
    return group


def _own_groups() -> dict[str, str]:
    """Return this process's group by controller; "" is version 2's."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path.lstrip("/")
    return found
