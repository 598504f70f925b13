"""How much memory all processes of a run use together, at most."""

import contextlib
import threading

INTERVAL_S = 5.0


class MemoryMeter:
    """Samples, in a thread, the proportional set size of this process and all it began.

    Proportional: memory that several processes share counts once.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="turngym-memory")
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, _total_bytes())


def _total_bytes() -> int:
    import psutil

    total = 0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total
