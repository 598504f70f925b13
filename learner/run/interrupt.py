"""Ctrl-C and SIGTERM: the first asks the run to stop and save, the second stops it at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

EXIT_CODE = 130  # as shells have it for SIGINT


class Interrupt:
    """While the context is open, signals set `is_set` and call what was registered, from another thread."""

    def __init__(
        self, say: Callable[[str], None], line: str = "stopping: saving a checkpoint first (once more to stop at once)"
    ) -> None:
        self._say = say
        self._line = line
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._previous: dict[signal.Signals, object] = {}

    def is_set(self) -> bool:
        """Whether the run was asked to stop."""
        return self._event.is_set()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call this once when the run is asked to stop; at once if it was already."""
        self._callbacks.append(callback)
        if self.is_set():
            callback()

    def request(self) -> None:
        """Ask the run to stop, as Ctrl-C does."""
        self._event.set()
        for callback in self._callbacks:
            callback()

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_set():
            # Nothing in between may hold it up; what it leaves dies with it (see placement.py).
            os._exit(EXIT_CODE)
        # In a thread, since this handler may have interrupted a call into Ray, or a print.
        threading.Thread(target=self._request_aloud, daemon=True).start()

    def _request_aloud(self) -> None:
        self._say(self._line)
        self.request()


@contextmanager
def signals_raise() -> Iterator[None]:
    """While the context is open, both signals raise KeyboardInterrupt: there is nothing to save yet."""
    is_main = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
