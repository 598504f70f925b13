"""How many calls of one family of environments may run at once, found out by watching them.

Follows the Gradient2 limit of Netflix's concurrency-limits (2018), which has TCP Vegas's idea: calls that take longer
than they usually do are queueing somewhere. Three things differ. It begins without a limit, as TCP does before the
first loss, since most environments need none. Latencies are medians of windows, so that a few long steps mean
nothing. Errors count like latency does, against the family's own long-run share: an environment that always fails a
tenth of its steps fails no less often with fewer of them.
"""

import math
import time
from collections.abc import Callable
from statistics import median

WINDOW_S = 1.0  # and at least as long as a usual call takes, so that a change has shown its effect
FEWEST_CALLS = 20  # in a window
TOLERANCE = 2.0  # how much longer than usual is still usual
ERROR_TOLERANCE = 0.1  # how much more than twice the usual share of errors is still usual
STEEPEST = 0.5  # the most that one window takes away
ERROR_BACKOFF = 0.7
_SMOOTHING = 0.1
_MOST_SAMPLES = 1024


class AdaptiveLimit:
    """The limit of one family, between 1 and `most`.

    Attributes:
        value: At most so many calls may run now; infinite until something was too much.
    """

    def __init__(self, most: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self.value = most
        self._most = most
        self._clock = clock
        self._usual_s: dict[str, float] = {}  # by method
        self._usual_errors = 0.0
        self._num_calls = self._num_errors = self._peak = 0
        self._window_s = WINDOW_S
        self._begin_window()

    def record(self, method: str, seconds: float, *, is_error: bool, num_running: int) -> None:
        """Note a call that ended, and how many were running then; now and then this moves the limit."""
        self._num_calls += 1
        self._peak = max(self._peak, num_running)
        if is_error:
            self._num_errors += 1  # how long a failure took says nothing
        else:
            self._sample(method, seconds)
        if self._num_calls >= FEWEST_CALLS and self._clock() - self._began_at >= self._window_s:
            self._move()
            self._begin_window()

    def _begin_window(self) -> None:
        self._began_at = self._clock()
        self._num_calls = self._num_errors = self._peak = self._num_seen = 0
        self._stride = 1
        self._seconds: dict[str, list[float]] = {}
        self._window_s = max(WINDOW_S, *self._usual_s.values(), 0.0)

    def _sample(self, method: str, seconds: float) -> None:
        """Keep every so-manieth latency, so that a window has an end to its memory."""
        self._num_seen += 1
        if self._num_seen % self._stride:
            return
        samples = self._seconds.setdefault(method, [])
        samples.append(seconds)
        if len(samples) > _MOST_SAMPLES:
            self._stride *= 2
            self._seconds = {name: kept[::2] for name, kept in self._seconds.items()}

    def _move(self) -> None:
        factor = min(1.0, max(STEEPEST, TOLERANCE / self._slowdown()))
        error_share = self._num_errors / self._num_calls
        if error_share > 2 * self._usual_errors + ERROR_TOLERANCE:
            factor = min(factor, ERROR_BACKOFF)
        self._usual_errors += _SMOOTHING * (error_share - self._usual_errors)
        if factor < 1.0:
            self.value = max(1.0, min(self.value, self._peak) * factor)
        elif self._peak >= self.value / 2:  # a limit that nobody reaches says nothing about more
            self.value = min(self._most, self.value + math.sqrt(self.value))

    def _slowdown(self) -> float:
        """Return how much longer calls took than they usually do, and learn what is usual."""
        total = weight = 0.0
        for method, samples in self._seconds.items():
            now_s = median(samples)
            usual_s = self._usual_s.get(method, now_s)
            total += len(samples) * (now_s / usual_s if usual_s > 0 else 1.0)
            weight += len(samples)
            # Down at once, up slowly: what has become fast again was slow for want of room.
            smoothing = 0.5 if now_s < usual_s else _SMOOTHING
            self._usual_s[method] = usual_s + smoothing * (now_s - usual_s)
        return total / weight if weight else 1.0
