"""What passes between the driver and its engines, and what the driver knows of each."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ...agents.base import Sampling
from ...envs.task import Task
from ..episodes.branching import Branching
from ..episodes.trajectory import FailureKind, Trajectory
from ..pools.watchdog import Blocking
from .turn_gate import ScheduledTurns


@dataclass(frozen=True)
class Order:
    """Attempts at one task that an engine is to run; `key` is the caller's own name for them."""

    key: int
    task: Task
    numbers: tuple[int, ...]
    sampling: Sampling
    branching: Branching | None = None
    turns: ScheduledTurns | None = None  # where a schedule is followed


@dataclass(frozen=True)
class Burst:
    """Orders that are given out at once, of which each engine knows how many attempts come to it."""

    number: int
    num_attempts: int


@dataclass(frozen=True)
class Outcome:
    """What came of an order: the attempts that ended, and the numbers of those that were lost with their engine."""

    order: Order
    trajectories: tuple[Trajectory, ...]
    lost: tuple[int, ...] = ()
    is_blameless: bool = False  # lost by the fault of another order, which will not come again


def outcome_of(order: Order, trajectories: Sequence[Trajectory], engine: int) -> Outcome:
    """Return what came of an order on an engine, by which it is named; attempts that died with the engine are lost."""
    kept = [t for t in trajectories if t.failure is None or t.failure.kind is not FailureKind.ENGINE_DEAD]
    lost = set(order.numbers) - {t.attempt for t in kept}
    return Outcome(order, tuple(replace(t, engine=engine) for t in kept), tuple(sorted(lost)))


@dataclass(frozen=True)
class EngineRef:
    """One start of one engine: what replaces it has another generation."""

    index: int
    generation: int


class Status(StrEnum):
    """What an engine is good for."""

    LIVE = "live"
    DEAD = "dead"  # to be started anew
    STARTING = "starting"
    BARE = "bare"  # started, and without the current weights
    GONE = "gone"  # dead, and no restart is left


@dataclass
class EngineState:
    """An engine as the driver knows it; Any: Ray's handles have no types."""

    index: int
    actor: Any
    status: Status = Status.LIVE
    generation: int = 0
    load: int = 0  # attempts that it was given and that have not ended
    has_process: bool = True  # its actor outlived the last death of its engine
    start: Any = None  # the call of the start
    start_until: float = 0.0
    question: Any = None  # the call of a health check that goes on
    asked_at: float = field(default_factory=time.monotonic)
    blocking: Blocking | None = None  # the environment's call that it died of
    num_blocked: int = 0  # how often that was so since an attempt came back from it

    @property
    def ref(self) -> EngineRef:
        """Its name as long as it lives."""
        return EngineRef(self.index, self.generation)

    @property
    def is_started(self) -> bool:
        """Whether it can be asked for something."""
        return self.status in (Status.LIVE, Status.BARE)

    @property
    def hosts_envs(self) -> bool:
        """Whether its actor may have had episodes, and lives, also while the engine is started anew in it."""
        return self.is_started or (self.has_process and self.status is not Status.GONE)


def introduce(engines: Sequence[EngineState]) -> None:
    """Tell each actor of the others, so that its episodes can go on when its own engine dies."""
    actors = [engine.actor for engine in engines]
    for engine in engines:
        engine.actor.meet.remote([actor for actor in actors if actor is not engine.actor])
