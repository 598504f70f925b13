"""Finds out which environment keeps an event loop from everything else, and where in its code."""

import asyncio
import logging
import sys
import threading
import time
import traceback
import weakref
from types import CodeType

_log = logging.getLogger(__name__)

BEAT_S = 0.1
BLOCKED_S = 0.5  # a loop that is silent for longer is blocked; one with thousands of short callbacks is not


class Watchdog:
    """Watches one event loop from a thread, which ends with the loop or with the watchdog.

    Args:
        loop: What to watch, from the thread it runs in.
        marker: The code of the function that environments are called through; its local `what` names the call.

    Attributes:
        blocked_s: Seconds that calls blocked the loop, by what they are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, marker: CodeType) -> None:
        self.loop = loop
        self.blocked_s: dict[str, float] = {}
        self._marker = marker
        self._loop_thread = threading.get_ident()
        self._beat_at = time.monotonic()
        self._counted_until = self._beat_at
        self._is_closed = threading.Event()
        arguments = (weakref.ref(self), self._is_closed)
        threading.Thread(target=_watch, args=arguments, name="turngym-watchdog", daemon=True).start()

    def close(self) -> None:
        """End the watch."""
        self._is_closed.set()

    def look(self) -> None:
        """Note who blocks the loop, if it has been silent for too long, and ask it for a sign of life.

        Raises:
            RuntimeError: The loop is closed.
        """
        now = time.monotonic()
        if now - self._beat_at > BLOCKED_S:
            self._note(now)
        self.loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()

    def _note(self, now: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        what, stack = None, traceback.StackSummary()
        while frame is not None and what is None:
            if frame.f_code is self._marker:
                what = str(frame.f_locals["what"])
            else:
                stack.insert(0, traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        if what is None:
            return  # it is not an environment that blocks it
        is_new = what not in self.blocked_s
        self.blocked_s[what] = self.blocked_s.get(what, 0.0) + now - max(self._beat_at, self._counted_until)
        self._counted_until = now
        if is_new:
            _log.warning(
                "%s blocks the event loop, and all episodes with it: an AsyncEnv must await, or be an Env, "
                "which runs in threads. It stands at:\n%s",
                what,
                "".join(stack.format()),
            )


def _watch(watched: "weakref.ref[Watchdog]", is_closed: threading.Event) -> None:
    while not is_closed.wait(BEAT_S):
        watchdog = watched()
        if watchdog is None:
            return
        try:
            watchdog.look()
        except RuntimeError:
            return
        del watchdog
