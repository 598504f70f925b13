"""Rollouts that follow the schedule of another run: the same groups begin and are taken, at the same versions."""

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ...errors import DeadlineError, ScheduleError
from ..fleet.fleet_engine import Order, Outcome
from ..fleet.turn_gate import ScheduledTurns
from .dispatch import Dispatcher, Job, RolloutPlan, RolloutState, Taken
from .draws import Draw, TaskSource
from .pacing import Pace
from .rollouts import POLL_S, Engines, Rollouts
from .schedule import HELP, GroupRecord, RolloutSchedule, StepRecord, check_followed


class ScheduledEngines(Engines, Protocol):
    """What such rollouts need of a fleet; see `Fleet`."""

    @property
    def lives(self) -> bool:
        """Whether any engine has the published weights."""
        ...

    def unfinished_turns(self, version: int) -> list[str]:
        """Wait a moment; return which turns of the orders that run are still to be sampled at `version` or before."""
        ...


class FollowingDispatcher(Dispatcher):
    """Begins and hands out what the schedule says, and no more; nothing expires.

    Tasks come from the source in its order, and each waits here until its time. Those that no step took then are drawn
    and never begun.

    Args:
        schedule: What to follow.
        source: As `Dispatcher` takes it.
        pace: As `Dispatcher` takes it; only its bound on the age of tokens counts.
        plan: As `Dispatcher` takes it.
    """

    def __init__(self, schedule: RolloutSchedule, source: TaskSource, pace: Pace, plan: RolloutPlan) -> None:
        super().__init__(source, pace, plan)
        self._schedule = schedule
        self._to_begin = dict(schedule.of_serial)
        self._held: dict[int, Draw] = {}
        self._num_steps = self._num_takes = 0  # steps that were begun, and how often the last one took groups

    @property
    def has_more(self) -> bool:
        """Whether the schedule has a further step."""
        return self._num_steps < len(self._schedule.steps)

    @property
    def has_begun_all(self) -> bool:
        """Whether all that the schedule begins at this version or before is given out."""
        return not self._due() and not any(job.draw for job in self._waiting)

    def begin_batch(self, version: int, num_batches_left: int, now: float) -> None:
        """Let the next step begin."""
        super().begin_batch(version, num_batches_left, now)
        self._num_steps += 1
        self._num_takes = 0
        if version != (then := self._step()).version:
            raise ScheduleError(
                f"step {then.step} learned on version {then.version} then, and the learner has published {version} "
                "now: another step had nothing to learn from"
            )

    def note(self, outcome: Outcome, now: float) -> None:
        """Take note of what came of an order, if it is what came then."""
        if outcome.order.turns is not None:
            for trajectory in outcome.trajectories:
                check_followed(outcome.order.turns.step, outcome.order.turns.group, trajectory)
        super().note(outcome, now)
        if self._dropped:
            raise ScheduleError(
                f"too many attempts at task {self._dropped[0].task.id!r} failed to keep it, and a step took it then: "
                "is --rollout.max_failed_attempts another one?"
            )

    def take(self, count: int, now: float) -> Taken | None:
        """Take what the step took then, once it is there."""
        step = self._step()
        if self._num_takes == len(step.takes):
            return Taken((), ())
        serials = [group.serial for group in step.takes[self._num_takes]]
        if len(serials) > count:
            raise ScheduleError(
                f"step {step.step} took {len(serials)} tasks at once then and wants {count} now: are the step's size "
                "and the filter the same?"
            )
        finished = self._buffer.pick(serials, self._version)
        if finished is None:
            return None
        self._num_takes += 1
        return Taken(tuple(finished), ())

    def drop_stale(self, version: int) -> list[int]:
        """Keep everything: what was learned from then is never too old."""
        return []

    def state(self) -> RolloutState:
        """Return what a run needs to go on from here."""
        state = super().state()
        running = tuple(sorted([*state.running, *self._held]))
        return RolloutState(running, state.finished, state.counts)

    def _begin(self) -> None:
        """Begin what is due."""
        for serial in self._due():
            step, group = self._to_begin.pop(serial)
            draw = self._drawn(serial, step, group)
            self._waiting.append(Job(draw.task, self._plan.numbers, self._plan.sampling, self._version, draw))

    def _order(self, job: Job, key: int) -> Order:
        order = super()._order(job, key)
        if job.draw is None:
            return order
        turns = ScheduledTurns(key, *self._schedule.of_serial[job.draw.serial])
        return Order(order.key, order.task, order.numbers, order.sampling, order.branching, turns)

    def _due(self) -> list[int]:
        if not self._num_steps:
            return []
        return [serial for serial, (_, group) in self._to_begin.items() if group.began <= self._version]

    def _drawn(self, serial: int, step: int, group: GroupRecord) -> Draw:
        """Return a draw, after as many others as it takes."""
        where = f"the schedule cannot be followed at step {step}, serial {serial}, turn 0"
        while serial not in self._held:
            draw = self._source.draw()
            if draw is None:
                raise ScheduleError(f"{where}: the tasks are used up before it is drawn; is this another data set?")
            self._held[draw.serial] = draw
        draw = self._held.pop(serial)
        if draw.task.id != group.task:
            raise ScheduleError(
                f"{where}: it drew task {group.task!r} then and {draw.task.id!r} now; is this another data set or seed?"
            )
        if len(group.turns) != len(self._plan.numbers):
            raise ScheduleError(
                f"{where}: it had {len(group.turns)} attempts then and has {len(self._plan.numbers)} now "
                "(--rollout.n_samples_per_prompt)"
            )
        return draw

    def _step(self) -> StepRecord:
        if self._num_steps > len(self._schedule.steps):
            raise ScheduleError(
                f"the schedule has {len(self._schedule.steps)} steps, and one more is asked for; {HELP}"
            )
        return self._schedule.steps[self._num_steps - 1]


class FollowingRollouts(Rollouts):
    """Rollouts whose updates wait for the turns that older weights are to sample.

    Args:
        schedule: What to follow.
        engines: Where episodes run.
        source: As `Rollouts` takes it.
        pace: As `FollowingDispatcher` takes it.
        plan: As `Rollouts` takes it; its lease is how long an update waits.
        should_stop: Whether the run was asked to stop; then nothing is waited for.
    """

    _dispatcher: FollowingDispatcher

    def __init__(
        self,
        schedule: RolloutSchedule,
        engines: ScheduledEngines,
        source: TaskSource,
        pace: Pace,
        plan: RolloutPlan,
        should_stop: Callable[[], bool],
    ) -> None:
        super().__init__(engines, source, pace, plan, partial(FollowingDispatcher, schedule))
        self._scheduled_engines, self._should_stop = engines, should_stop
        self._timeout_s = plan.lease_s

    def drop_stale(self, version: int) -> None:
        """Wait, before weights of `version` are published, until all is sampled that older ones are to sample.

        Raises:
            ScheduleError: It never will be, for one because all engines with those weights died.
            DeadlineError: It is not after the time that an order may take.
        """
        until = time.monotonic() + self._timeout_s
        while not self._should_stop():
            with self._changed:
                self.raise_failure()
                if not (has_begun_all := self._dispatcher.has_begun_all):
                    self._changed.wait(POLL_S)
            left = self._scheduled_engines.unfinished_turns(version - 1) if has_begun_all else ["what is to begin"]
            if not left:
                return
            if not self._scheduled_engines.lives:  # the learner has newer weights by now, and cannot bring these again
                raise ScheduleError(
                    f"no engine lives that has the weights of version {version - 1}, and the update to version "
                    f"{version} waits for turns that these sampled then, the first of them: {left[0]}"
                )
            if time.monotonic() > until:
                raise DeadlineError(
                    f"the update to version {version} waited {self._timeout_s:g} s for turns that were sampled before "
                    f"it then, the first of them: {left[0]}"
                )
