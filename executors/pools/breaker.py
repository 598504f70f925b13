"""A circuit breaker: when a kind of call fails again and again, the others wait until one that tries it succeeds.

Pattern of Nygard's "Release It!" (2007). Closed, all pass. After a burst of failures it opens; after a while, longer
each time, one call may try (half-open): its success closes the breaker.
"""

import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

WINDOW = 20  # calls that are looked at
BURST = 16  # failures among them that open it; an environment that fails a hard task here and there does not
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
MOST_PROBES = 8  # that fail one after the other before it is hopeless: about two minutes


class BreakerState(StrEnum):
    """How things stand."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Entry(StrEnum):
    """What a call may do."""

    PASS = "pass"
    PROBE = "probe"
    WAIT = "wait"
    HOPELESS = "hopeless"


class Breaker:
    """Counts the outcomes of one kind of call and says who may make the next.

    Attributes:
        state: How things stand.
        num_opened: How often it opened.
        last_error: What the last failure said.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)
        self._pause_s = FIRST_PAUSE_S
        self._opens_at = 0.0
        self._num_failed_probes = 0
        self.state = BreakerState.CLOSED
        self.num_opened = 0
        self.last_error = ""

    def enter(self) -> Entry:
        """Say what a call that comes now may do; a probe must be followed by `record` or `cancel_probe`."""
        if self.state is BreakerState.CLOSED:
            return Entry.PASS
        if self.state is BreakerState.OPEN and self.pause_s <= 0:
            self.state = BreakerState.HALF_OPEN
            return Entry.PROBE
        return Entry.HOPELESS if self.is_hopeless else Entry.WAIT

    @property
    def pause_s(self) -> float:
        """Seconds until the next probe may go."""
        return self._opens_at - self._clock()

    @property
    def is_hopeless(self) -> bool:
        """Whether so many probes failed that nobody should wait for the next."""
        return self._num_failed_probes >= MOST_PROBES

    @property
    def num_failed_probes(self) -> int:
        """Probes that failed since it opened."""
        return self._num_failed_probes

    def record(self, error: Exception | None, *, is_probe: bool) -> None:
        """Note how a call ended; late ones that began before it opened change nothing."""
        if error is not None:
            self.last_error = f"{type(error).__name__}: {error}"
        if is_probe:
            if error is None:
                self._close()
            else:
                self._num_failed_probes += 1
                self._open(min(2 * self._pause_s, LONGEST_PAUSE_S))
        elif self.state is BreakerState.CLOSED:
            self._outcomes.append(error is not None)
            if error is not None and sum(self._outcomes) >= BURST:
                self.num_opened += 1
                self._open(FIRST_PAUSE_S)

    def cancel_probe(self) -> None:
        """Let another call be the probe: this one told nothing."""
        self.state = BreakerState.OPEN

    def _open(self, pause_s: float) -> None:
        self.state = BreakerState.OPEN
        self._pause_s = pause_s
        self._opens_at = self._clock() + pause_s

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self._outcomes.clear()
        self._num_failed_probes = 0
