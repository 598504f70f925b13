"""Calls of asynchronous environments that do not end when they are cancelled, and what becomes of them."""

import asyncio
import logging
import types
from collections.abc import Awaitable, Generator
from typing import Any

from ..deadlines import Deadline
from .base import in_background

_log = logging.getLogger(__name__)

GRACE_S = 5.0  # to clean up in, after each cancellation
MOST_CANCELLATIONS = 3
LONGEST_PAUSE_S = 60.0  # between two cancellations of what was given up

Steps = Generator[Any, Any, object]  # Any: what a coroutine yields is between its innermost await and the event loop


class Abandoned:
    """Owns calls that were given up: goes on cancelling them, and counts them.

    Attributes:
        num_ever: How many were given up so far.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self.num_ever = 0

    @property
    def num_left(self) -> int:
        """How many still run."""
        return len(self._tasks)

    @types.coroutine
    def within(self, deadline: Deadline, awaitable: Awaitable[object], what: str) -> Generator[Any, Any, object]:
        """Await a call in this task, in the block of its deadline: once that has expired, cancel it after each grace.

        One that swallows the last cancellation, too, goes on in a task of its own, and this raises what it swallowed.
        """
        steps: Any = awaitable.__await__()
        insistence: _Insistence | None = None
        try:
            future = steps.send(None)
            while True:
                try:
                    came = yield future
                except GeneratorExit:
                    steps.close()
                    raise
                except BaseException as error:
                    if deadline.has_expired and isinstance(error, asyncio.CancelledError):
                        insistence = insistence or _Insistence()
                        if insistence.is_exhausted:
                            self._take(steps, error, what)
                            raise
                    future = steps.throw(error)
                else:
                    future = steps.send(came)
        except StopIteration as end:
            return end.value
        finally:
            if insistence is not None:
                insistence.end()

    def _take(self, steps: Steps, error: BaseException, what: str) -> None:
        task = asyncio.create_task(_rest(steps, error), name=what)
        self._tasks.add(task)
        self.num_ever += 1
        _log.warning(
            "%s goes on after it was cancelled %d times, %g s apart: its episode has failed without it, and it is "
            "cancelled again and again. What is awaited must let CancelledError through",
            what,
            MOST_CANCELLATIONS,
            GRACE_S,
        )
        in_background(self._end(task, what))  # as long as the call lives

    async def _end(self, task: asyncio.Task[object], what: str) -> None:
        pause_s = GRACE_S
        while not (await asyncio.wait([task], timeout=pause_s))[0]:
            task.cancel()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        how = "was cancelled" if task.cancelled() else "returned" if error is None else f"raised {error!r}"
        _log.warning("%s has ended long after its deadline: it %s", what, how)


@types.coroutine
def _rest(steps: Steps, error: BaseException) -> Generator[Any, Any, object]:
    """Go on with what another task has awaited so far."""
    try:
        future = steps.throw(error)
        while True:
            try:
                came = yield future
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as later:
                future = steps.throw(later)
            else:
                future = steps.send(came)
    except StopIteration as end:
        return end.value


class _Insistence:
    """Cancels the task that makes it again and again, until it ends; the task must not count these cancellations."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # it has a deadline
        self._task = task
        self._num_more = 0
        self._timer = self._set()

    @property
    def is_exhausted(self) -> bool:
        """Whether the last cancellation was swallowed, too."""
        return self._num_more >= MOST_CANCELLATIONS

    def end(self) -> None:
        """Cancel no more."""
        self._timer.cancel()
        for _ in range(self._num_more):
            self._task.uncancel()

    def _set(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(GRACE_S, self._again)

    def _again(self) -> None:
        self._num_more += 1
        self._task.cancel()
        self._timer = self._set()
