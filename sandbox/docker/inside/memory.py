"""What the container's cgroup says about memory; programs can read it and not write it."""

from __future__ import annotations

from typing import NamedTuple

_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")  # version 2, then version 1
_PEAKS = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NEAR_BYTES = 1 << 20  # the largest piece that the kernel kills for is 32 KiB


class KillCount(NamedTuple):
    """What was killed for want of memory so far, and how often the container's limit was the reason."""

    num_kills: int
    num_at_limit: int | None  # version 1 does not count it


def kill_count() -> KillCount | None:
    """Return what the kernel has counted; None where nobody tells."""
    for path in _COUNTS:
        try:
            with open(path) as file:
                numbers = dict(line.split() for line in file)
        except OSError:
            continue
        if "oom_kill" in numbers:
            return KillCount(int(numbers["oom_kill"]), int(numbers["oom"]) if "oom" in numbers else None)
    return None


def kill_cause(before: KillCount | None) -> str | None:
    """Return what the kernel has killed for since then: "memory", the container's own limit, or "lost", the machine."""
    now = kill_count()
    if before is None or now is None or now.num_kills <= before.num_kills:
        return None
    if now.num_at_limit is not None and before.num_at_limit is not None:
        return "memory" if now.num_at_limit > before.num_at_limit else "lost"
    peak, limit = _number(_PEAKS), _number(_LIMITS)
    return "memory" if peak is None or limit is None or peak >= limit - _NEAR_BYTES else "lost"


def peak_bytes() -> int | None:
    """Return the most memory that the container ever used; None where nobody tells."""
    return _number(_PEAKS)


def _number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        try:
            with open(path, "rb") as file:
                return int(file.read())
        except (OSError, ValueError):  # no such file, or no limit
            continue
    return None
