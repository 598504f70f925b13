"""What the container's cgroup says about memory; programs can read it and not write it."""

from __future__ import annotations

_KILLS = (  # version 2, then version 1
    ("/sys/fs/cgroup/memory.events", b"oom_kill "),
    ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill "),
)
_PEAKS = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")


def num_memory_kills() -> int | None:
    """Return how many processes were killed at the memory limit so far; None where nobody tells."""
    for path, key in _KILLS:
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(key):
                        return int(line[len(key) :])
        except OSError:
            continue
    return None


def peak_bytes() -> int | None:
    """Return the most memory that the container ever used; None where nobody tells."""
    for path in _PEAKS:
        try:
            with open(path, "rb") as file:
                return int(file.read())
        except OSError:
            continue
    return None
