"""Who answers for a dead engine: itself, or an environment that kept its process from everything else."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from ..episodes.trajectory import EndReason, Failure, FailureKind, Trajectory
from ..pools.watchdog import Blocking, episode_name
from .block_reports import reported
from .fleet_engine import EngineState, Order, Outcome, Status
from .ray_calls import from_ray

FREE_IN_A_ROW = 3


class Restarts:
    """How often dead engines may still be replaced.

    An environment's fault is not the engine's, and costs none; not without end, though: where an engine was blocked
    more than `FREE_IN_A_ROW` times and nothing came back from it in between, each further time counts.
    """

    def __init__(self, most: int) -> None:
        self._num_left = most
        self.num_taken = 0

    @property
    def has_any(self) -> bool:
        """Whether another engine may be replaced."""
        return self._num_left > 0

    def take(self, engine: EngineState) -> bool:
        """Say whether this engine may be replaced, and count it."""
        is_free = False
        if engine.blocking is not None:
            engine.num_blocked += 1
            is_free = engine.num_blocked <= FREE_IN_A_ROW
        if not is_free and not self._num_left:
            return False
        self._num_left -= not is_free
        self.num_taken += 1
        return True


def why_silent(actor: Any, quiet_s: float) -> tuple[str, Blocking | None]:  # Any: Ray's handles have no types
    """Look what an actor whose event loop is silent said to block it; return the cause, and the call to blame."""
    cause, blocking = f"it did not answer a health check within {quiet_s:g} s", reported(actor)
    return cause if blocking is None else f"{cause}, since {blocking.described}", blocking


def lost_outcomes(orders: Sequence[Order], blocking: Blocking | None) -> list[Outcome]:
    """Return what came of orders whose process is gone.

    Where an environment blocked it, that one's attempts have failed: what costs everyone else minutes is not tried
    again. The other orders were lost for no fault of theirs.
    """
    culprit = None if blocking is None else _culprit(orders, blocking)
    if culprit is None or blocking is None:
        return [Outcome(order, (), order.numbers) for order in orders]
    others = [Outcome(order, (), order.numbers, is_blameless=True) for order in orders if order is not culprit]
    failure = Failure(FailureKind.ENV, f"{blocking.described}; its engine's process had to be ended", -1)
    failed = [
        Trajectory(culprit.task, number, (), (), np.empty(0), (), EndReason.FAILED, failure)
        for number in culprit.numbers
    ]
    return [Outcome(culprit, tuple(failed)), *others]


def see_to_start(engine: EngineState, timeout_s: float) -> str | None:
    """Take note of an engine whose start has ended; return why it failed, where it did."""
    if engine.status is not Status.STARTING:
        return None
    if ray.wait([engine.start], timeout=0)[0]:
        try:
            ray.get(engine.start)
        except RayError as error:
            return str(from_ray(error, "its start", f"engine {engine.index}"))
        engine.status, engine.asked_at = Status.BARE, time.monotonic()
        return None
    return f"it took longer than {timeout_s:g} s" if time.monotonic() > engine.start_until else None


def _culprit(orders: Sequence[Order], blocking: Blocking) -> Order | None:
    for order in orders:
        if blocking.episode in {episode_name(order.task.id, number) for number in order.numbers}:
            return order
    # The side of a game that nobody asked for plays it, too.
    return next((o for o in orders if o.task.id == blocking.episode.rpartition("/")[0]), None)
