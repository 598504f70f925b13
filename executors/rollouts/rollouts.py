"""Rollouts beside the learner: a thread keeps the engines busy as far ahead as the pace allows."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...agents.base import Sampling
from ...envs.task import Task
from ...errors import TurnGymError, WorkerError
from ..fleet.fleet_engine import Order, Outcome
from .buffer import Finished, Group
from .dispatch import Dispatcher, Job, RolloutPlan, RolloutState, Taken
from .draws import TaskSource
from .pacing import Pace

S = TypeVar("S")
POLL_S = 0.1


class Engines(Protocol):
    """What rollouts need of a fleet; see `Fleet`."""

    def submit(self, order: Order) -> bool:
        """Give an order to an engine; return whether one lives."""
        ...

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Wait until something happens, at most so long, and return what came of orders."""
        ...

    def cancel(self, keys: Sequence[int]) -> None:
        """End orders; nothing comes of them."""
        ...


class Rollouts:
    """A dispatcher at work: its thread submits and polls, the learner's takes; neither waits for the other's work.

    Args:
        engines: Where episodes run.
        source: Where tasks come from; only asked under this object's lock.
        pace: How far ahead.
        plan: How.
        make_dispatcher: What decides; by default freely.
    """

    def __init__(
        self,
        engines: Engines,
        source: TaskSource,
        pace: Pace,
        plan: RolloutPlan,
        make_dispatcher: Callable[[TaskSource, Pace, RolloutPlan], Dispatcher] = Dispatcher,
    ) -> None:
        self._engines = engines
        self._dispatcher = make_dispatcher(source, pace, plan)
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._on_failure: list[Callable[[], None]] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="turngym-rollouts", daemon=True)

    def start(self) -> None:
        """Let the thread run."""
        self._thread.start()

    def on_failure(self, callback: Callable[[], None]) -> None:
        """Call this once when nothing will come any more, from another thread; at once if that is so already.

        The learner may be in a long step then, which nobody will take further: who ends it asks `raise_failure` why.
        """
        with self._changed:
            if self._failure is None:
                self._on_failure.append(callback)
                return
        callback()

    def raise_failure(self) -> None:
        """Raise what ended the thread, if anything did."""
        if isinstance(self._failure, TurnGymError):
            raise self._failure
        if self._failure is not None:
            error = self._failure
            raise WorkerError(f"the rollouts' thread ended by an error: {type(error).__name__}: {error}") from error

    def begin_batch(self, version: int, num_batches_left: int) -> None:
        """Let rollouts run for the batch to come; `num_batches_left` counts it."""
        with self._changed:
            self._dispatcher.begin_batch(version, num_batches_left, time.monotonic())

    def begin_learning(self) -> None:
        """Take note that the batch is complete: what begins from now on waits for the next update."""
        with self._changed:
            self._dispatcher.begin_learning()

    def take(
        self, count: int, should_stop: Callable[[], bool], on_idle: Callable[[], None] = lambda: None
    ) -> Taken | None:
        """Wait for groups and take them; fewer than `count` only where no more will come, None when told to stop.

        Args:
            count: Groups.
            should_stop: Asked while waiting.
            on_idle: Called while waiting, without the lock.

        Raises:
            TrajectoryError: Too many attempts failed.
            EngineDeadError: No engine lives any more.
        """
        while not should_stop():
            on_idle()
            with self._changed:
                self.raise_failure()
                if (taken := self._dispatcher.take(count, time.monotonic())) is not None:
                    return taken
                self._changed.wait(POLL_S)
        return None

    def drop_stale(self, version: int) -> None:
        """Give back what would be too old for weights of `version`, before these are published."""
        with self._changed:
            keys = self._dispatcher.drop_stale(version)
        self._engines.cancel(keys)

    def run_all(
        self,
        tasks: Sequence[Task],
        numbers: tuple[int, ...],
        sampling: Sampling,
        should_stop: Callable[[], bool],
        on_done: Callable[[Sequence[Group]], None],
        on_idle: Callable[[], None] = lambda: None,
    ) -> list[Group] | None:
        """Roll out tasks that are none of the run's, such as held-out ones; None when told to stop.

        Groups are passed to `on_done` soon after they ended, those too that a stop or an error leaves the caller with.
        """
        groups: dict[int, Group] = {}
        jobs = [Job(t, numbers, sampling, 0, done=_keeper(groups, place)) for place, t in enumerate(tasks)]
        with self._changed:
            for job in jobs:
                self._dispatcher.add(job)
        num_told = 0
        while True:
            with self._changed:
                ended = list(groups.values())[num_told:]
            if ended:
                num_told += len(ended)
                on_done(ended)
            if num_told == len(tasks):
                return [groups[place] for place in range(len(tasks))]
            on_idle()
            if should_stop():
                with self._changed:
                    keys = self._dispatcher.withdraw(lambda job: job.done is not None)
                self._engines.cancel(keys)
                return None
            with self._changed:
                self.raise_failure()
                self._changed.wait(POLL_S)

    def state(self, of_source: Callable[[tuple[int, ...]], S]) -> tuple[RolloutState, S]:
        """Return what a run needs to go on from here: of this, and of the source, given the serials that run."""
        with self._changed:
            state = self._dispatcher.state()
            return state, of_source(state.running)

    def restore(self, finished: Sequence[Finished], counts: dict[str, int]) -> None:
        """Go on with what an earlier part of the run left."""
        with self._changed:
            self._dispatcher.restore(finished, counts)

    @property
    def num_ready(self) -> int:
        """Groups that wait for the learner."""
        with self._changed:
            return self._dispatcher.num_ready

    @property
    def has_more(self) -> bool:
        """Whether a further batch would hold anything."""
        with self._changed:
            return self._dispatcher.has_more

    @property
    def counts(self) -> dict[str, int]:
        """What was lost, dropped, given back or late, so far."""
        with self._changed:
            return dict(self._dispatcher.counts)

    def close(self, timeout_s: float = 10.0) -> None:
        """End what runs."""
        with self._changed:
            self._is_closed = True
            keys = self._dispatcher.withdraw(lambda job: True)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._engines.cancel(keys)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._is_closed:
                        return
                    self._dispatcher.orders(self._engines.submit, time.monotonic())
                outcomes = self._engines.poll(POLL_S)
                now = time.monotonic()
                with self._changed:
                    for outcome in outcomes:
                        self._dispatcher.note(outcome, now)
                    late = self._dispatcher.end_leases(now)
                    if outcomes:
                        self._changed.notify_all()
                self._engines.cancel(late)
        except BaseException as error:  # it is the learner's thread that must hear of it
            with self._changed:
                self._failure, callbacks = error, self._on_failure
                self._changed.notify_all()
            for callback in callbacks:
                callback()


def _keeper(groups: dict[int, Group], place: int) -> Callable[[Group], None]:
    def keep(group: Group) -> None:
        groups[place] = group

    return keep
