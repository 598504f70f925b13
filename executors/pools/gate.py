"""A gate that only so many may be behind at once; families that wait for it share its time by weight.

Start-time fair queueing (Goyal, Vin, Cheng 1997): each family has a virtual time that grows by the seconds its
entries stay, divided by its weight; of the families that wait, the one with the smallest is served. A family that
was idle begins where the others are, so idleness earns nothing.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import ConfigError
from .line import Line

_SMOOTHING = 0.1  # of a family's usual stay


@dataclass
class _Lane:
    """A family at the gate.

    What an entry will cost is not known before it leaves, so it is charged the usual and settled later. The sums
    of what is charged and not settled are kept per family: entries need no identity.
    """

    weight: float
    line: Line = field(default_factory=Line)
    virtual_s: float = 0.0
    usual_s: float = 1.0  # how long its entries stay
    num_inside: int = 0
    charged_s: float = 0.0  # for those inside

    def charge(self) -> None:
        self.num_inside += 1
        self.charged_s += self.usual_s
        self.virtual_s += self.usual_s / self.weight

    def settle(self, stay_s: float) -> None:
        charged_s = self.charged_s / self.num_inside
        self.num_inside -= 1
        self.charged_s -= charged_s
        self.virtual_s += (stay_s - charged_s) / self.weight


class FairGate:
    """Lets at most `capacity` through at once and never makes one wait while there is room.

    Args:
        capacity: How many may be behind it.
        weights: Of families, by name; 1 for those not named.
        clock: Where the time comes from, in seconds.
    """

    def __init__(
        self,
        capacity: int,
        weights: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"a gate must let at least 1 through, got a capacity of {capacity}")
        self.capacity = capacity
        self.num_inside = 0
        self._weights = dict(weights or {})
        self._clock = clock
        self._lanes: dict[str, _Lane] = {}
        self._virtual_s = 0.0  # of the entry that was served last

    @property
    def num_waiting(self) -> int:
        """Those who wait for room."""
        return sum(len(lane.line) for lane in self._lanes.values())

    async def enter(self, family: str, timeout_s: float | None = None) -> float:
        """Wait for room and go through; return the time, which `leave` wants back.

        Args:
            family: Who pays for the time behind the gate.
            timeout_s: How long to wait at most; None where the caller cancels.

        Raises:
            TimeoutError: There was no room in time.
        """
        lane = self._lanes.get(family)
        if lane is None:
            lane = self._lanes[family] = _Lane(self._weights.get(family, 1.0))
        if not lane.line:
            lane.virtual_s = max(lane.virtual_s, self._virtual_s)
        if self.num_inside < self.capacity:  # then nobody waits: whoever leaves lets the next in
            self._let_in(lane)
        else:
            await lane.line.wait(timeout_s, lambda: self._let_out(lane, 0.0))
        return self._clock()

    def leave(self, family: str, entered_at: float) -> None:
        """Make room for the next."""
        lane = self._lanes[family]
        stay_s = self._clock() - entered_at
        lane.usual_s += _SMOOTHING * (stay_s - lane.usual_s)
        self._let_out(lane, stay_s)

    def _let_in(self, lane: _Lane) -> None:
        self.num_inside += 1
        self._virtual_s = max(self._virtual_s, lane.virtual_s)
        lane.charge()

    def _let_out(self, lane: _Lane, stay_s: float) -> None:
        self.num_inside -= 1
        lane.settle(stay_s)
        waiting = [lane for lane in self._lanes.values() if lane.line]
        if waiting:
            first = min(waiting, key=lambda lane: lane.virtual_s)
            self._let_in(first)
            first.line.admit()
