"""How long a thread had to wait for a core: what a busy machine takes, and no environment is to blame for."""

from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def run_delay_s() -> float:
    """Return the seconds for which this thread could have run and had no core, since it began.

    0.0 where the kernel keeps no such count. Linux tells it as the second number of `schedstat`
    (Documentation/scheduler/sched-stats.rst).
    """
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):  # no Linux, or a kernel built without it
        return 0.0
