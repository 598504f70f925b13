"""Finds out which environment keeps an event loop from everything else, and where in its code."""

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
import weakref
from dataclasses import dataclass
from types import CodeType, FrameType

_log = logging.getLogger(__name__)

BEAT_S = 0.1
BLOCKED_S = (
    0.5  # one call that runs for longer without a sign of life of the loop blocks it; a crowd of short ones does not
)


@dataclass(frozen=True)
class Blocking:
    """A call of an environment that keeps an event loop from everything else.

    Attributes:
        what: The environment's name and method.
        seconds: For how long by now.
        episode: The name of the asyncio task that makes the call; see `episode_name`.
    """

    what: str
    seconds: float
    episode: str

    @property
    def described(self) -> str:
        """Say it in words."""
        return f"{self.what} has blocked the event loop for {self.seconds:.0f} s, in episode {self.episode!r}"


def episode_name(task_id: str, attempt: int) -> str:
    """Return what an episode's asyncio task is called, by which it is known whose call blocks."""
    return f"{task_id}/{attempt}"


class _Collections:
    """Knows when the last garbage collection ended: long ones stop everything, and nobody is to blame.

    A thread may look between the collection and the call that tells its end, so one that has begun counts until then.
    """

    def __init__(self) -> None:
        self._ended_at = 0.0
        self._is_running = False

    @property
    def ended_at(self) -> float:
        return time.monotonic() if self._is_running else self._ended_at

    def __call__(self, phase: str, info: object) -> None:
        self._ended_at = time.monotonic()
        self._is_running = phase == "start"


_collections = _Collections()
_watching: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def blocking_now() -> Blocking | None:
    """Return the call that blocks an event loop of this process just now, if one does; any thread may ask."""
    return next((found for watchdog in list(_watching) if (found := watchdog.blocking()) is not None), None)


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
        self._beat_at = self._looked_at = self._since = self._counted_until = time.monotonic()
        self._frame: FrameType | None = None  # of the call that ran at the last look
        self._is_closed = threading.Event()
        if _collections not in gc.callbacks:
            gc.callbacks.append(_collections)
        _watching.add(self)
        arguments = (weakref.ref(self), self._is_closed)
        threading.Thread(target=_watch, args=arguments, name="turngym-watchdog", daemon=True).start()

    def close(self) -> None:
        """End the watch."""
        _watching.discard(self)
        self._is_closed.set()

    def blocking(self) -> Blocking | None:
        """Return the call that blocked the loop at the last look."""
        frame, seconds = self._frame, time.monotonic() - self._since
        task = asyncio.current_task(self.loop)
        if frame is None or task is None or seconds <= BLOCKED_S:
            return None
        return Blocking(str(frame.f_locals["what"]), seconds, task.get_name())

    def look(self) -> None:
        """Note which call blocks the loop, if one does, and ask the loop for a sign of life.

        Raises:
            RuntimeError: The loop is closed.
        """
        now = time.monotonic()
        frame = self._frame_of_call()
        if frame is not self._frame or self._beat_at > self._since:
            # Who holds the interpreter's lock for long keeps this thread from looking, too; so does a collection.
            has_overslept = now - self._looked_at > BLOCKED_S
            self._since = max(self._beat_at, self._looked_at, _collections.ended_at) if has_overslept else now
        self._frame, self._looked_at = frame, now
        if frame is not None and now - self._since > BLOCKED_S:
            self._note(frame, now)
        self.loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        self._beat_at = time.monotonic()

    def _frame_of_call(self) -> FrameType | None:
        """Return the frame of the environment's call that the loop runs just now."""
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None and frame.f_code is not self._marker:
            frame = frame.f_back
        return frame

    def _note(self, frame: FrameType, now: float) -> None:
        what = str(frame.f_locals["what"])
        is_new = what not in self.blocked_s
        self.blocked_s[what] = self.blocked_s.get(what, 0.0) + now - max(self._since, self._counted_until)
        self._counted_until = now
        if is_new:
            _log.warning(
                "%s blocks the event loop, and all episodes with it: an AsyncEnv must await, or be an Env, which runs "
                "in threads. It stands at:\n%s",
                what,
                self._stack(frame),
            )

    def _stack(self, outermost: FrameType) -> str:
        stack = traceback.StackSummary()
        frame = sys._current_frames().get(self._loop_thread)
        while frame is not None and frame is not outermost:
            stack.insert(0, traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return "".join(stack.format())


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
