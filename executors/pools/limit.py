"""How many calls of one family of environments may run at once, found out by watching them.

Follows the Gradient2 limit of Netflix's concurrency-limits (2018), which has TCP Vegas's idea: calls that take longer
than they usually do are queueing somewhere. What differs: it begins without a limit, as TCP does before the first
loss, since most environments need none. Latencies are medians of windows, so that a few long steps mean nothing. What
is as slow with fewer calls at once does not queue, and becomes the usual. Errors count like latency does, against the
family's own long-run share: an environment that always fails a tenth fails no less with fewer calls at once.
"""

import math
import time
from collections.abc import Callable
from statistics import median

WINDOW_S = 1.0  # and at least as long as a call takes, so that a change has shown its effect
FEWEST_CALLS = 20  # in a window
QUICK_S = 0.05  # calls that take less are not told from each other
LAGS = 4.0  # rounds of the event loop that a call may take longer for no reason of its own
TOLERANCE = 2.0  # how much longer than usual is still usual
ERROR_TOLERANCE = 0.1  # how much more than twice the usual share of errors is still usual
STEEPEST = 0.5  # the most that one window takes away
ERROR_BACKOFF = 0.7
JUDGED = 0.8  # of the limit before it was cut: from there on it must show whether that helps
_ERROR_SMOOTHING = 0.1
_SLOWER_SMOOTHING = 0.01  # up slowly, and not while the limit is felt, or queueing would become the usual
_QUICKER_SMOOTHING = 0.5  # down at once: it was slow for want of room
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
        self._cut_from: tuple[float, float] | None = None  # limit and slowdown before it was cut, maybe several times
        self._is_settling = False  # calls from before a cut still end
        self._num_calls = self._num_errors = self._peak = 0
        self._window_s, self._lag_s = WINDOW_S, 0.0
        self._begin_window()

    def record(self, method: str, seconds: float, *, is_error: bool, num_running: int) -> None:
        """Note a call that ended, and how many were running then; now and then this moves the limit."""
        self._num_calls += 1
        if num_running > self._peak:
            self._peak = num_running
        if is_error:
            self._num_errors += 1  # how long a failure took says nothing
        else:
            self._sample(method, seconds)
        if self._num_calls >= FEWEST_CALLS and self._clock() - self._began_at >= self._window_s:
            self._end_window()

    def note_lag(self, seconds: float) -> None:
        """Note how long a round of the event loop took: what it adds to calls is not the environment's."""
        self._lag_s = max(self._lag_s, seconds)

    def _begin_window(self) -> None:
        self._lag_s = 0.0
        self._began_at = self._clock()
        self._num_calls = self._num_errors = self._peak = self._num_seen = 0
        self._stride = 1
        self._seconds: dict[str, list[float]] = {}

    def _sample(self, method: str, seconds: float) -> None:
        """Keep every so-manieth latency, so that a window has an end to its memory."""
        self._num_seen += 1
        if self._num_seen % self._stride:
            return
        samples = self._seconds.get(method)
        if samples is None:
            samples = self._seconds[method] = []
        samples.append(seconds)
        if len(samples) > _MOST_SAMPLES:
            self._stride *= 2
            self._seconds = {name: kept[::2] for name, kept in self._seconds.items()}

    def _end_window(self) -> None:
        now_s = {method: median(samples) for method, samples in self._seconds.items()}
        self._window_s = max(WINDOW_S, *now_s.values(), 0.0)
        if not self._is_settling:
            value = self.value
            self._move(now_s)
            self._is_settling = self.value < value
        else:
            self._is_settling = False
        self._begin_window()

    def _move(self, now_s: dict[str, float]) -> None:
        slowdown = self._slowdown(now_s)
        if self._was_in_vain(slowdown):
            self._usual_s |= now_s
            slowdown = 1.0
        factor = min(1.0, max(STEEPEST, TOLERANCE / slowdown))
        if factor == 1.0:
            self._cut_from = None
        elif self._cut_from is None:
            self._cut_from = min(self.value, self._peak), slowdown
        error_share = self._num_errors / self._num_calls
        if error_share > 2 * self._usual_errors + ERROR_TOLERANCE:
            factor = min(factor, ERROR_BACKOFF)
        self._usual_errors += _ERROR_SMOOTHING * (error_share - self._usual_errors)
        if factor < 1.0:
            self.value = max(1.0, min(self.value, self._peak) * factor)
        elif self._peak >= self.value / 2:  # a limit that nobody reaches says nothing about more
            self.value = min(self._most, self.value + math.sqrt(self.value))

    def _was_in_vain(self, slowdown: float) -> bool:
        """Whether calls became quicker by less than half of what they would if they queued."""
        if self._cut_from is None:
            return False
        value, before = self._cut_from
        share = self.value / value
        return share <= JUDGED and slowdown > before * (1 + share) / 2

    def _slowdown(self, now_s: dict[str, float]) -> float:
        """Return how much longer calls took than they usually do, and learn what is usual."""
        total = weight = 0.0
        quick_s = max(QUICK_S, LAGS * self._lag_s)
        for method, seconds in now_s.items():
            usual_s = self._usual_s.get(method, seconds)
            num_calls = len(self._seconds[method])
            total += num_calls * max(seconds, quick_s) / max(usual_s, quick_s)
            weight += num_calls
            if seconds < usual_s:
                smoothing = _QUICKER_SMOOTHING
            else:
                smoothing = 0.0 if self._peak >= self.value / 2 else _SLOWER_SMOOTHING
            self._usual_s[method] = usual_s + smoothing * (seconds - usual_s)
        return total / weight if weight else 1.0
