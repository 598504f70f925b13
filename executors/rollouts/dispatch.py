"""Which task is begun when, what comes of it, and what the learner gets: all decisions, without clocks or threads.

Every draw is in one place at any time: it runs, waits to run, waits for the learner, or was given back or used up.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...agents.base import Sampling
from ...envs.task import Task
from ..episodes.branching import Branching
from ..episodes.failures import check_failures
from ..episodes.trajectory import EndReason, Failure, FailureKind, Trajectory
from ..fleet.fleet_engine import Order, Outcome
from .buffer import Buffer, Finished, Group
from .draws import TaskSource
from .job import Job
from .pacing import Pace

__all__ = ["Dispatcher", "Job", "RolloutPlan", "RolloutState", "Taken"]


@dataclass(frozen=True)
class RolloutPlan:
    """How groups are rolled out.

    Attributes:
        numbers: Of the attempts at each task.
        sampling: How to sample.
        max_failed_attempts: A group of which a larger share fails is dropped, and another task drawn.
        max_failed_fraction: Of all attempts since the last batch; more, and the run stops.
        lease_s: How long an engine may take for an order before it is given out again.
        max_leases: How often; attempts that are lost once more have failed.
        branching: After which turns the episodes that are learned from fork; None for no turn.
        straggler_s: How long a batch waits after the last group that came; what would expire then does. None: for ever.
    """

    numbers: tuple[int, ...]
    sampling: Sampling
    max_failed_attempts: float = 0.5
    max_failed_fraction: float = 0.5
    lease_s: float = 7200.0
    max_leases: int = 3
    straggler_s: float | None = None
    branching: Branching | None = None


@dataclass(frozen=True)
class RolloutState:
    """Where rollouts stand: the draws that nothing came of yet, those that wait for the learner, and the counts."""

    running: tuple[int, ...]
    finished: tuple[Finished, ...]
    counts: dict[str, int]


@dataclass(frozen=True)
class Taken:
    """What a batch was given.

    Attributes:
        finished: Groups to learn from.
        dropped: Groups to be shown and not to be learned from.
        is_late: Fewer came than were asked for, and it waited for the others as long as it may.
    """

    finished: tuple[Finished, ...]
    dropped: tuple[Group, ...]
    is_late: bool = False


class Dispatcher:
    """Draws tasks, makes orders of them, and keeps what is done until the learner takes it.

    Args:
        source: Where tasks come from.
        pace: How far ahead of the learner.
        plan: How.
    """

    def __init__(self, source: TaskSource, pace: Pace, plan: RolloutPlan) -> None:
        self._source, self._pace, self._plan = source, pace, plan
        self._buffer = Buffer(pace)
        self._running: dict[int, Job] = {}  # by the key of its order
        self._waiting: deque[Job] = deque()
        self._num_orders = 0
        self._version = self._num_batches_left = 0
        self._num_wanted = pace.batch_groups  # by the batch that is being filled
        self._is_learning = True  # nothing is drawn before the first batch is asked for
        self._dropped: list[Group] = []
        self._num_returned = 0  # attempts, since the last batch
        self._failed: list[Trajectory] = []  # of these
        self._heard_at = 0.0
        self.counts: Counter[str] = Counter()

    @property
    def num_ready(self) -> int:
        """Groups that wait for the learner."""
        return len(self._buffer)

    @property
    def num_open(self) -> int:
        """Groups that are begun and that the learner has not taken."""
        return len(self._buffer) + len(self._deadlines())

    @property
    def has_more(self) -> bool:
        """Whether a further batch would hold anything."""
        return bool(self._source.num_left or self.num_open)

    def begin_batch(self, version: int, num_batches_left: int, now: float) -> None:
        """Let rollouts run for the batch to come; `num_batches_left` counts it."""
        self._version, self._num_batches_left, self._is_learning = version, num_batches_left, False
        self._num_wanted = self._pace.batch_groups
        self._heard_at = now

    def begin_learning(self) -> None:
        """Take note that the batch is complete: what begins from now on waits for the next update."""
        self._is_learning = True
        self._num_batches_left -= 1
        self._num_wanted = self._pace.batch_groups
        self._num_returned, self._failed = 0, []

    def add(self, job: Job) -> None:
        """Have a job done that is none of the run's tasks."""
        self._waiting.append(job)

    def orders(self, submit: Callable[[Order], bool], now: float) -> None:
        """Begin as many groups as the pace allows and give out what waits, until no engine takes an order."""
        self._begin()
        while self._waiting:
            job = self._waiting[0]
            if not submit(self._order(job, self._num_orders)):
                return
            self._waiting.popleft()
            job.num_orders += 1
            job.until = now + self._plan.lease_s
            self._running[self._num_orders] = job
            self._num_orders += 1

    def note(self, outcome: Outcome, now: float) -> None:
        """Take note of what came of an order."""
        job = self._running.pop(outcome.order.key, None)
        if job is None:
            return  # it was given up meanwhile
        job.ended += [t for t in outcome.trajectories if t.attempt in job.missing]
        if job.missing:
            self.counts["attempts_lost"] += len(job.missing)
            job.num_orders -= outcome.is_blameless
            self._again(job, "it was lost with its engine")
        else:
            self._finish(job)
        self._heard_at = now

    def end_leases(self, now: float) -> list[int]:
        """Give out again what took too long; return the keys of orders to cancel."""
        late = [key for key, job in self._running.items() if now > job.until]
        for key in late:
            self.counts["orders_late"] += 1
            self._again(self._running.pop(key), f"no answer came within its lease of {self._plan.lease_s:g} s")
        return late

    def take(self, count: int, now: float) -> Taken | None:
        """Take groups for the batch, which wants `count` more; None: wait. Fewer come if no more will, or in time."""
        self._num_wanted = count
        self.expire(self._version)
        straggler_s, running = self._plan.straggler_s, self._deadlines()
        is_late = straggler_s is not None and now - self._heard_at > straggler_s and len(self._buffer) > 0
        if not running and len(self._buffer) < count and self._room() > 0 and not is_late:
            return None
        finished = self._from_buffer(count, running)
        if finished is None and is_late:
            finished = self._from_buffer(count, ())
            self.counts["batches_hurried"] += 1
        if finished is None:
            return None
        self._num_wanted -= len(finished)
        dropped, self._dropped = tuple(self._dropped), []
        return Taken(tuple(finished), dropped, is_late and len(finished) < count)

    def drop_stale(self, version: int) -> list[int]:
        """Give back what would be too old for weights of `version`; return the keys of orders to cancel."""
        self.expire(version)
        late = [key for key, job in self._running.items() if self._is_stale(job, version)]
        stale = [self._running.pop(key) for key in late]
        stale += [job for job in self._waiting if self._is_stale(job, version)]
        self._waiting = deque(job for job in self._waiting if not self._is_stale(job, version))
        for job in stale:
            assert job.draw is not None
            self.counts["groups_expired_running"] += 1
            self._source.give_back(job.draw)
        return late

    def withdraw(self, is_unwanted: Callable[[Job], bool]) -> list[int]:
        """Forget jobs; return the keys of orders to cancel."""
        keys = [key for key, job in self._running.items() if is_unwanted(job)]
        for key in keys:
            del self._running[key]
        self._waiting = deque(job for job in self._waiting if not is_unwanted(job))
        return keys

    def expire(self, version: int) -> None:
        """Give back finished groups that are too old for weights of `version`."""
        before = self._buffer.num_stale
        for draw in self._buffer.expire(version):
            self.counts["groups_expired"] += 1
            self._source.give_back(draw)
        self.counts["attempts_stale"] += self._buffer.num_stale - before

    def state(self) -> RolloutState:
        """Return what a run needs to go on from here."""
        running = tuple(sorted(job.draw.serial for job in self._draws() if job.draw is not None))
        return RolloutState(running, self._buffer.finished, dict(self.counts))

    def restore(self, finished: Sequence[Finished], counts: dict[str, int]) -> None:
        """Go on with what an earlier part of the run left."""
        for one in finished:
            self._buffer.put(one)
        self.counts.update(counts)

    def _begin(self) -> None:
        """Draw as many tasks as there is room for."""
        for _ in range(self._room()):
            draw = self._source.draw()
            if draw is None:
                break
            self._waiting.append(Job(draw.task, self._plan.numbers, self._plan.sampling, self._version, draw))

    def _order(self, job: Job, key: int) -> Order:
        job.priority = key if job.priority is None else job.priority
        branching = None if job.draw is None else self._plan.branching
        return Order(key, job.task, job.missing, replace(job.sampling, priority=job.priority), branching)

    def _from_buffer(self, count: int, running: Sequence[int]) -> list[Finished] | None:
        before = self._buffer.num_stale
        finished = self._buffer.take(count, self._version, running)
        self.counts["attempts_stale"] += self._buffer.num_stale - before
        return finished

    def _draws(self) -> list[Job]:
        return [job for job in (*self._running.values(), *self._waiting) if job.draw is not None]

    def _deadlines(self) -> list[int]:
        return [self._pace.deadline(job.version) for job in self._draws()]

    def _is_stale(self, job: Job, version: int) -> bool:
        return job.draw is not None and self._pace.deadline(job.version) < version

    def _room(self) -> int:
        """Return how many groups may be begun now, as far as there are tasks."""
        # What the batch has already is as good as open: no more is begun for it than it still wants.
        num_open = self.num_open + self._pace.batch_groups - self._num_wanted
        room = self._pace.room(num_open, self._num_batches_left, is_learning=self._is_learning)
        return min(room, self._source.num_left)

    def _again(self, job: Job, why: str) -> None:
        """Have the missing attempts run again, or count them as failed if that was tried often enough."""
        if job.num_orders < self._plan.max_leases:
            self._waiting.append(job)
            return
        message = f"{why}, and {job.num_orders} orders for it came to nothing"
        job.ended += [_lost(job.task, number, message) for number in job.missing]
        self._finish(job)

    def _finish(self, job: Job) -> None:
        group = Group(job.task, tuple(sorted(job.ended, key=lambda t: t.attempt)))
        if job.done is not None:
            job.done(group)
            return
        assert job.draw is not None
        failed = [t for t in group.trajectories if not t.is_valid]
        self._num_returned += len(group.trajectories)
        self._failed += failed
        if group.num_valid and len(failed) <= self._plan.max_failed_attempts * len(group.trajectories):
            self._buffer.put(Finished(job.draw, group, job.version))
            return
        self.counts["groups_dropped"] += 1
        self._dropped.append(group)
        if self._num_returned >= self._pace.batch_groups * len(self._plan.numbers):
            check_failures(self._failed, self._num_returned, self._plan.max_failed_fraction)


def _lost(task: Task, number: int, message: str) -> Trajectory:
    failure = Failure(FailureKind.LOST, message, -1)
    return Trajectory(task, number, (), (), np.empty(0), (), EndReason.FAILED, failure)
