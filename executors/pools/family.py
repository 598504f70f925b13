"""A family of environments: how many of its calls run at once, whether any may, and how they went."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ...errors import EnvLostError, EnvUnavailableError, ProgramError
from .base import Ticket
from .breaker import Breaker, BreakerState, Entry
from .limit import AdaptiveLimit
from .line import Line

T = TypeVar("T")

_LAG_EVERY = 16  # calls, the event loop's lag is measured
_RECENT = 256  # calls whose latencies and errors are reported


@dataclass(frozen=True)
class FamilyStats:
    """What one family's calls do now, and did lately.

    Attributes:
        running: Calls that are in their environment.
        waiting: Calls that wait for the family's limit, its breaker or a free worker.
        limit: Most calls that may run at once; None where nothing limits them.
        latency_s: Median of the last calls that succeeded, without their wait; None before the first.
        error_rate: Share of the last calls that failed for a reason of the environment's own; None before the first.
        breaker: `closed`, `half_open` or `open`; of its kinds of call the worst.
        num_calls: Calls that ended, ever.
        num_failures: Of them, failures of the environment's own.
        num_lost: Of them, those that went down with a worker for no fault of their own.
        num_opened: How often a breaker opened.
    """

    running: int
    waiting: int
    limit: float | None
    latency_s: float | None
    error_rate: float | None
    breaker: BreakerState
    num_calls: int = 0
    num_failures: int = 0
    num_lost: int = 0
    num_opened: int = 0


class _Door:
    """A breaker and those who wait for it."""

    def __init__(self) -> None:
        self.breaker = Breaker()
        self.line = Line()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, timeout_s: float) -> None:
        """Wait until it may have opened."""
        self.rouse()
        await self.line.wait(timeout_s, self.rouse)

    def rouse(self) -> None:
        """Have those who wait look again when it is time: all, or one that can be the next probe."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        is_hopeless = self.breaker.is_hopeless
        if self.breaker.state is BreakerState.CLOSED or is_hopeless:
            self.line.admit_all()
        elif self.breaker.state is BreakerState.OPEN:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self.breaker.pause_s), self.line.admit)


class Family:
    """Lets the calls of one family run, as many and as soon as it can bear.

    Args:
        name: Of the family.
        most: An upper bound for its limit.
    """

    def __init__(self, name: str, most: float = math.inf) -> None:
        self.name = name
        self.limit = AdaptiveLimit(most)
        self._doors: dict[str, _Door] = {}
        self._line = Line()  # for a place under the limit
        self._num_admitted = 0
        self._tickets: set[Ticket] = set()
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._errors: deque[bool] = deque(maxlen=_RECENT)
        self._num_calls = self._num_failures = self._num_lost = 0

    async def run(self, method: str, ticket: Ticket, work: Callable[[], Awaitable[T]]) -> T:
        """Run a call when the family may, and learn from how it went.

        Args:
            method: What kind of call it is; each kind has its own breaker.
            ticket: The call's deadlines; `work` begins it.
            work: The call.

        Raises:
            EnvUnavailableError: It might not begin within the ticket's wait.
            Exception: What the call raised.
        """
        door = self._doors.get(method)
        if door is None:
            door = self._doors[method] = _Door()
        self._tickets.add(ticket)
        try:
            if door.breaker.state is BreakerState.CLOSED and self._has_place():
                self._num_admitted += 1
                is_probe = False
            else:
                is_probe = await self._admitted(door, method, ticket)
            try:
                result = await work()
            except (EnvLostError, EnvUnavailableError) as error:
                self._num_lost += isinstance(error, EnvLostError)
                self._learn_nothing(door, is_probe)
                raise
            except ProgramError:  # the model's program is at fault, and the environment said so
                self._learn(door, method, ticket, None, is_probe)
                raise
            except Exception as error:
                self._learn(door, method, ticket, error, is_probe)
                raise
            except BaseException:
                self._learn_nothing(door, is_probe)
                raise
            else:
                self._learn(door, method, ticket, None, is_probe)
                return result
            finally:
                self._give_place()
        finally:
            self._tickets.discard(ticket)

    def stats(self) -> FamilyStats:
        """Say how things stand."""
        running = sum(ticket.began_at is not None for ticket in self._tickets)
        states = {door.breaker.state for door in self._doors.values()}
        return FamilyStats(
            running=running,
            waiting=len(self._tickets) - running,
            limit=None if math.isinf(self.limit.value) else self.limit.value,
            latency_s=median(self._seconds) if self._seconds else None,
            error_rate=sum(self._errors) / len(self._errors) if self._errors else None,
            breaker=next((s for s in (BreakerState.OPEN, BreakerState.HALF_OPEN) if s in states), BreakerState.CLOSED),
            num_calls=self._num_calls,
            num_failures=self._num_failures,
            num_lost=self._num_lost,
            num_opened=sum(door.breaker.num_opened for door in self._doors.values()),
        )

    async def _admitted(self, door: _Door, method: str, ticket: Ticket) -> bool:
        """Wait for the breaker and for a place; return whether the call is a probe."""
        breaker = door.breaker
        while True:
            entry = breaker.enter()
            if entry is Entry.HOPELESS:
                raise EnvUnavailableError(
                    f"{self.name}.{method} keeps failing: {breaker.num_failed_probes} tries over minutes failed one "
                    f"after the other, the last with {breaker.last_error}"
                )
            try:
                if entry is Entry.WAIT:
                    await door.wait(ticket.seconds_left())
                    continue
                await self._take_place(ticket)
            except BaseException as error:
                if entry is Entry.PROBE:
                    self._learn_nothing(door, is_probe=True)
                if isinstance(error, TimeoutError):
                    raise self._too_late(door, method) from error
                raise
            if entry is Entry.PROBE or breaker.state is BreakerState.CLOSED:
                return entry is Entry.PROBE
            self._give_place()  # it opened meanwhile

    def _too_late(self, door: _Door, method: str) -> EnvUnavailableError:
        if door.breaker.state is BreakerState.CLOSED:
            why = f"{self._num_admitted} others were running, and its limit is {self.limit.value:.0f}"
        else:
            why = f"such calls keep failing, the last with {door.breaker.last_error}"
        return EnvUnavailableError(f"{self.name}.{method} had to wait until its episode's time ran out: {why}")

    def _has_place(self) -> bool:
        return self._num_admitted < self.limit.value and not self._line

    async def _take_place(self, ticket: Ticket) -> None:
        if self._has_place():
            self._num_admitted += 1
        else:
            await self._line.wait(ticket.seconds_left(), self._give_place)

    def _give_place(self) -> None:
        self._num_admitted -= 1
        while self._num_admitted < self.limit.value and self._line.admit():
            self._num_admitted += 1

    def _learn(self, door: _Door, method: str, ticket: Ticket, error: Exception | None, is_probe: bool) -> None:
        self._num_calls += 1
        self._num_failures += error is not None
        self._errors.append(error is not None)
        seconds = 0.0 if ticket.began_at is None else time.monotonic() - ticket.began_at
        if error is None:
            self._seconds.append(seconds)
        self.limit.record(method, seconds, is_error=error is not None, num_running=self._num_admitted)
        if not self._num_calls % _LAG_EVERY:
            asyncio.get_running_loop().call_soon(self._note_lag, time.monotonic())
        was_closed = door.breaker.state is BreakerState.CLOSED
        door.breaker.record(error, is_probe=is_probe)
        if not was_closed and door.line:
            door.rouse()

    def _note_lag(self, asked_at: float) -> None:
        self.limit.note_lag(time.monotonic() - asked_at)

    def _learn_nothing(self, door: _Door, is_probe: bool) -> None:
        if is_probe:
            door.breaker.cancel_probe()
            door.rouse()
