"""A fleet that follows a schedule: it says which turns an update must wait for."""

from collections.abc import Sequence

from ..fleet.fleet import Fleet
from ..fleet.fleet_engine import EngineRef, Order, Outcome

ANSWER_TIMEOUT_S = 60.0


class ScheduledFleet:
    """What `FollowingRollouts` need of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @property
    def lives(self) -> bool:
        """Whether any engine has the published weights."""
        return bool(set(self._fleet.started) - set(self._fleet.bare))

    def submit(self, order: Order) -> bool:
        """Give an order to an engine; return whether one lives."""
        return self._fleet.submit(order)

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Wait until something happens, at most so long, and return what came of orders."""
        return self._fleet.poll(timeout_s)

    def cancel(self, keys: Sequence[int]) -> None:
        """End orders; nothing comes of them."""
        self._fleet.cancel(keys)

    def unfinished_turns(self, version: int) -> list[str]:
        """Wait a moment; return which turns of the orders that run are still to be sampled at `version` or before.

        Raises:
            ScheduleError: One of them cannot be any more.
        """
        keys: dict[EngineRef, list[int]] = {}
        for order, engine in self._fleet.running:
            if order.turns is not None:
                keys.setdefault(engine, []).append(order.key)
        left: list[str] = []
        for engine, its in keys.items():
            what = "asking which turns are left"
            answers = self._fleet.call(
                [engine], "unfinished_turns", version, its, timeout_s=ANSWER_TIMEOUT_S, what=what
            )
            left += answers.get(engine, [f"those of engine {engine.index}, which died"])
        return left
