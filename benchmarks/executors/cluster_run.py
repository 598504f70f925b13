"""A run on a simulated cluster: the real dispatcher in virtual time, with models of engines, environments and learner.

Nothing sleeps: the next event of a queue says what time it is. The order of calls is that of `learner/loop.py`.
"""

import functools
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cluster_engine import Engine, EngineModel, Request
from cluster_work import NO_END, EndlessTasks, Episode, Workload

from turngym.agents.base import Sampling
from turngym.agents.sequence import Sequence
from turngym.envs.task import Task
from turngym.executors.engines.base import UpdateMode
from turngym.executors.episodes.trajectory import EndReason, Trajectory, TurnEnd
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.dispatch import Dispatcher, RolloutPlan
from turngym.executors.rollouts.pacing import Pace

SAMPLING = Sampling(max_tokens=1)  # what is sampled is the workload's affair


@dataclass(frozen=True)
class Cluster:
    """What runs on what.

    Attributes:
        attempts: At each task.
        learner_fixed_s: Of a step, whatever its size.
        learner_s_per_token: Of a step, for each token sampled for it.
        update_s: A weight update takes, in which nothing is sampled; None: there are no updates.
    """

    num_engines: int = 256
    batch_groups: int = 2048
    attempts: int = 16
    learner_fixed_s: float = 5.0
    learner_s_per_token: float = 1e-6
    update_s: float | None = 3.0
    engine: EngineModel = field(default_factory=EngineModel)
    work: Workload = field(default_factory=Workload)


@dataclass(frozen=True)
class Mode:
    """How rollouts and learning go together."""

    batches_ahead: int
    max_staleness: int
    update: UpdateMode = UpdateMode.DRAIN


@dataclass
class Record:
    """What a run measures, step by step.

    Attributes:
        step_ends: When the engines had the new weights.
        learn_s: What the learner took.
        straggler_s: For how long it waited although enough groups were ready.
        batch_tokens: Sampled for the batch.
        lags: Ages of its attempts, in versions.
        samples: Times, and the tokens sampled by all engines until then.
        expired: Groups given back as too old.
    """

    step_ends: list[float] = field(default_factory=list)
    learn_s: list[float] = field(default_factory=list)
    straggler_s: list[float] = field(default_factory=list)
    batch_tokens: list[int] = field(default_factory=list)
    lags: list[np.ndarray] = field(default_factory=list)
    samples: list[tuple[float, float]] = field(default_factory=list)
    expired: int = 0
    num_preempted: int = 0
    num_events: int = 0


@dataclass(eq=False)
class OrderAtWork:
    """An order with its engine and its attempts."""

    order: Order
    engine: int
    episodes: list[Episode]
    num_left: int
    requests: set[Request] = field(default_factory=set)
    is_cancelled: bool = False


class Run:
    """Plays a number of steps.

    Args:
        cluster: What runs.
        mode: How.
        sample_s: Virtual seconds between two samples of what the engines do.
    """

    def __init__(self, cluster: Cluster, mode: Mode, sample_s: float = 5.0) -> None:
        self._cluster, self._mode, self._sample_s = cluster, mode, sample_s
        pace = Pace(cluster.batch_groups, mode.batches_ahead, mode.max_staleness)
        self._dispatcher = Dispatcher(EndlessTasks(), pace, RolloutPlan(tuple(range(cluster.attempts)), SAMPLING))
        self._engines = [Engine(cluster.engine) for _ in range(cluster.num_engines)]
        self._turns = [0] * cluster.num_engines  # of an engine's next event; an earlier one is out of date
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_events = 0
        self._orders: dict[int, OrderAtWork] = {}
        self._now = 0.0
        self._version = 0
        self._is_waiting = False  # the learner, for its batch
        self._full_at: float | None = None  # when enough groups were ready for it
        self._num_draining = self._num_steps_left = 0
        self.record = Record()

    def play(self, num_steps: int) -> Record:
        """Play so many steps, and return what was measured."""
        self._num_steps_left = num_steps
        self._begin_batch()
        self._sample()
        while self._num_steps_left:
            self._now, _, act, arguments = heapq.heappop(self._events)
            act(*arguments)
            self.record.num_events += 1
        counts = self._dispatcher.counts
        self.record.expired = counts["groups_expired"] + counts["groups_expired_running"]
        self.record.num_preempted = sum(engine.num_preempted for engine in self._engines)
        return self.record

    def _at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time, self._num_events, act, arguments))

    def _sample(self) -> None:
        self.record.samples.append((self._now, sum(engine.num_tokens for engine in self._engines)))
        self._at(self._now + self._sample_s, self._sample)

    # The learner

    def _begin_batch(self) -> None:
        self._dispatcher.begin_batch(self._version, NO_END, self._now)
        self._is_waiting, self._full_at = True, None
        self._dispatcher.orders(self._submit, self._now)
        self._take()

    def _take(self) -> None:
        if self._dispatcher.num_ready < self._cluster.batch_groups:
            return
        self._full_at = self._now if self._full_at is None else self._full_at
        taken = self._dispatcher.take(self._cluster.batch_groups, self._now)
        if taken is None:
            return
        self._is_waiting = False
        self.record.straggler_s.append(self._now - self._full_at)
        self._dispatcher.begin_learning()
        self._dispatcher.orders(self._submit, self._now)
        trajectories = [t for finished in taken.finished for t in finished.group.trajectories if t.is_valid]
        tokens = int(sum(t.extra_logs["tokens"] for t in trajectories))
        self.record.lags.append(np.array([self._version - (t.oldest_version or 0) for t in trajectories]))
        self.record.batch_tokens.append(tokens)
        self.record.learn_s.append(self._cluster.learner_fixed_s + self._cluster.learner_s_per_token * tokens)
        self._at(self._now + self.record.learn_s[-1], self._learned)

    def _learned(self) -> None:
        if self._cluster.update_s is None:
            self._end_step()
            return
        for key in self._dispatcher.drop_stale(self._version + 1):
            self._cancel(self._orders.pop(key))
        for engine in self._engines:
            engine.pause(self._mode.update, self._now)
        if self._mode.update is UpdateMode.DRAIN:
            self._num_draining = sum(not engine.is_idle for engine in self._engines)
        if not self._num_draining:
            self._at(self._now + self._cluster.update_s, self._updated)

    def _updated(self) -> None:
        self._version += 1
        for index, engine in enumerate(self._engines):
            engine.resume(self._version, self._now)
            self._plan(index)
        self._end_step()

    def _end_step(self) -> None:
        self.record.step_ends.append(self._now)
        self._num_steps_left -= 1
        if self._num_steps_left:
            self._begin_batch()

    # Engines and episodes

    def _submit(self, order: Order) -> bool:
        """Give all attempts to the least loaded engine, as the fleet does."""
        index = min(range(len(self._engines)), key=lambda index: self._engines[index].load)
        episodes = self._cluster.work.episodes(int(order.task.id), self._cluster.attempts)
        work = OrderAtWork(order, index, [episodes[number] for number in order.numbers], len(order.numbers))
        self._orders[order.key] = work
        self._engines[index].load += work.num_left
        for episode in work.episodes:
            self._at(self._now + episode.waits_s[0], self._ask, work, episode)
        return True

    def _ask(self, work: OrderAtWork, episode: Episode) -> None:
        """Ask for the next turn: its environment has answered."""
        if work.is_cancelled:
            return
        before, after = episode.turn_ends
        shown = self._cluster.work.observation_tokens if episode.turn else self._cluster.work.prompt_tokens
        shown_before = self._cluster.work.prompt_tokens + episode.turn * self._cluster.work.observation_tokens
        request = Request(episode, shown_before + before, shown, after - before, work.order.sampling.priority, work)
        work.requests.add(request)
        self._engines[work.engine].ask(request, self._now)
        self._plan(work.engine)

    def _plan(self, index: int) -> None:
        self._turns[index] += 1
        time = self._engines[index].next_at()
        if time < math.inf:
            self._at(time, self._run_engine, index, self._turns[index])

    def _run_engine(self, index: int, turn: int) -> None:
        if turn != self._turns[index]:
            return
        engine = self._engines[index]
        for request in engine.run_to(self._now):
            self._completed(request)
        self._plan(index)
        if self._num_draining and engine.is_idle:
            self._num_draining -= 1
            if not self._num_draining:
                self._at(self._now + (self._cluster.update_s or 0.0), self._updated)

    def _completed(self, request: Request) -> None:
        work, episode = request.work, request.episode
        work.requests.discard(request)
        episode.turn += 1
        if not episode.is_over:
            self._at(self._now + episode.waits_s[episode.turn], self._ask, work, episode)
            return
        self._engines[work.engine].load -= 1
        work.num_left -= 1
        if not work.num_left:
            del self._orders[work.order.key]
            trajectories = tuple(_trajectory(work.order.task, episode) for episode in work.episodes)
            self._dispatcher.note(Outcome(work.order, trajectories), self._now)
            if self._is_waiting:
                self._take()

    def _cancel(self, work: OrderAtWork) -> None:
        work.is_cancelled = True
        engine = self._engines[work.engine]
        for request in work.requests:
            engine.cancel(request, self._now)
        engine.load -= sum(not episode.is_over for episode in work.episodes)
        self._plan(work.engine)


def _trajectory(task: Task, episode: Episode) -> Trajectory:
    assert episode.oldest is not None
    assert episode.newest is not None
    return Trajectory(
        task,
        episode.number,
        (_sequence(episode.oldest, episode.newest),),
        (),
        np.zeros(1),
        (TurnEnd.STOP,),
        EndReason.TERMINATED,
        extra_logs={"tokens": float(episode.tokens)},
    )


@functools.cache
def _sequence(oldest: int, newest: int) -> Sequence:
    """Return the first and the last token of an episode: all that pacing looks at."""
    versions = np.array([oldest, newest], np.int32)
    logprobs = np.full(2, -1, np.float32)
    return Sequence(np.zeros(2, np.int32), np.ones(2, bool), logprobs, versions, np.zeros(2, np.int32), {0: SAMPLING})
