"""Full determinism: orders go out in bursts, the next one when the last has ended, whatever their timing."""

import threading
from collections.abc import Sequence
from typing import Protocol

from ..fleet.fleet_engine import Order, Outcome
from .rollouts import Engines


class BurstEngines(Engines, Protocol):
    """What bursts need of a fleet; see `Fleet`."""

    def submit_burst(self, orders: Sequence[Order]) -> bool:
        """Give orders to engines that each know how many attempts come; return whether an engine lives."""
        ...


class Bursts:
    """Engines that take all orders of one moment, and no other until all of them are done.

    Which engine gets what, which attempts sample beside each other, and in which order what came of them is noted, is
    then the same in every run. One thread submits and polls; another may cancel meanwhile.
    """

    def __init__(self, engines: BurstEngines) -> None:
        self._engines = engines
        self._lock = threading.Lock()
        self._next: dict[int, Order] = {}  # by key
        self._running: dict[int, Outcome | None] = {}  # by key; what came of it, once it did

    def submit(self, order: Order) -> bool:
        """Take an order for the next burst; return whether that has not begun."""
        with self._lock:
            if self._running:
                return False
            self._next[order.key] = order
            return True

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Begin the next burst, wait at most so long, and return all that came of a burst once it is done."""
        with self._lock:
            if self._next and self._engines.submit_burst(list(self._next.values())):
                self._running, self._next = dict.fromkeys(self._next), {}
        outcomes = self._engines.poll(timeout_s)
        with self._lock:
            self._running |= {o.order.key: o for o in outcomes if o.order.key in self._running}
            done = [outcome for _, outcome in sorted(self._running.items()) if outcome is not None]
            if len(done) < len(self._running):
                return []
            self._running = {}
            return done

    def cancel(self, keys: Sequence[int]) -> None:
        """End orders; nothing comes of them."""
        with self._lock:
            for key in keys:
                self._next.pop(key, None)
                self._running.pop(key, None)
        self._engines.cancel(keys)
