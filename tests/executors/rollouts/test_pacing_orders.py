"""In whatever order groups finish, pacing lets none expire, and lets the learner wait only where one would."""

from dataclasses import dataclass

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.agents.sequence import Sequence
from turngym.envs.task import Task
from turngym.executors.episodes.branching import Branching
from turngym.executors.episodes.trajectory import EndReason, Trajectory, TurnEnd
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.dispatch import Dispatcher, Job, RolloutPlan, Taken
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.pacing import Pace

SAMPLING = Sampling(1)
BOUNDS = [(0, 0), (0, 2), (1, 1), (1, 2), (1, 4), (2, 2), (2, 3), (3, 3), (3, 6)]


class Tasks:
    """A number of tasks, each drawn once unless it is given back."""

    def __init__(self, count: int) -> None:
        self._left = list(range(count))

    @property
    def num_left(self) -> int:
        return len(self._left)

    def draw(self) -> Draw | None:
        return Draw(self._left[0], Task(id=str(self._left.pop(0)))) if self._left else None

    def give_back(self, draw: Draw) -> None:
        raise AssertionError(f"draw {draw.serial} was given back: it expired")


@dataclass
class Open:
    """A group that runs, as somebody sees it who knows nothing of the dispatcher."""

    order: Order
    began: int


class Play:
    """A run in which a random choice says what happens next."""

    def __init__(self, pace: Pace, num_steps: int, seed: int) -> None:
        self.pace, self.num_steps = pace, num_steps
        self.rng = np.random.default_rng(seed)
        self.dispatcher = Dispatcher(Tasks(num_steps * pace.batch_groups), pace, RolloutPlan((0,), SAMPLING))
        self.running: list[Open] = []
        self.ready: list[int] = []  # deadlines, by the oldest token
        self.version = 0
        self.batch_sizes: list[int] = []

    def fill(self) -> None:
        def submit(order: Order) -> bool:
            if self.rng.random() < 0.1:
                return False  # no engine is free
            self.running.append(Open(order, self.version))
            return True

        self.dispatcher.orders(submit, 0.0)

    def finish_one(self) -> None:
        """Finish a group: the last begun often, so that old ones stay behind; its tokens may be younger than itself."""
        last = len(self.running) - 1
        place = last if self.rng.random() < 0.6 else int(self.rng.integers(0, last + 1))
        done = self.running.pop(place)
        oldest = int(self.rng.integers(done.began, self.version + 1)) if self.rng.random() < 0.3 else done.began
        self.ready.append(self.pace.deadline(oldest))
        trajectory = Trajectory(
            done.order.task, 0, (tokens(oldest),), (), np.zeros(1), (TurnEnd.STOP,), EndReason.TERMINATED
        )
        self.dispatcher.note(Outcome(done.order, (trajectory,)), 0.0)

    def take(self) -> Taken | None:
        """Come for a batch; see that it waits exactly where it must."""
        count = self.pace.batch_groups
        taken = self.dispatcher.take(count, 0.0)
        self.ready.sort()
        running = [self.pace.deadline(one.began) for one in self.running]
        if len(self.ready) >= count:
            left = self.ready[count:] + running
            assert (taken is None) == (num_expired(left, self.version, count) > 0)
            # Waiting helps: once all are done, nothing has to expire.
            assert num_expired(self.ready + running, self.version - 1, count) == 0
        if taken is not None:
            self.batch_sizes.append(len(taken.finished))
            assert all(f.group.num_valid == 1 for f in taken.finished)
            del self.ready[:count]
        return taken

    def step(self, num_left: int, publishes: bool) -> None:
        self.dispatcher.begin_batch(self.version, num_left, 0.0)
        self.fill()
        while self.take() is None:
            if self.running:
                self.finish_one()
            self.fill()
        self.dispatcher.begin_learning()
        for _ in range(self.rng.integers(0, 3 * self.pace.batch_groups)):
            self.fill()
            if self.running:
                self.finish_one()
        if publishes:
            assert self.dispatcher.drop_stale(self.version + 1) == []
            self.version += 1


def tokens(version: int) -> Sequence:
    ids, logprobs = np.zeros(1, np.int32), np.full(1, -1.0, np.float32)
    return Sequence(ids, np.ones(1, bool), logprobs, np.array([version], np.int32), ids, {0: SAMPLING})


def num_expired(deadlines: list[int], version: int, count: int) -> int:
    """Return how many groups expire if batches after `version` take the most urgent that are left."""
    left, expired = sorted(deadlines), 0
    while left:
        version += 1
        fresh = [deadline for deadline in left if deadline >= version]
        expired += len(left) - len(fresh)
        left = fresh[count:]
    return expired


@pytest.mark.parametrize(("batches_ahead", "max_staleness"), BOUNDS)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_expires_and_nothing_is_waited_for_in_vain(batches_ahead, max_staleness, seed):
    num_steps, batch_groups = 12, 1 + seed
    play = Play(Pace(batch_groups, batches_ahead, max_staleness), num_steps, seed)
    for done in range(num_steps):
        play.step(num_steps - done, publishes=play.rng.random() < 0.9)
    assert play.batch_sizes == [batch_groups] * num_steps
    assert play.dispatcher.counts.total() == 0
    assert not play.dispatcher.has_more


@pytest.mark.parametrize("seed", range(40))
def test_must_wait_agrees_with_playing_all_batches(seed):
    """On any deadlines, also such as no pace lets come about: to wait is to save a group that runs."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        count, bound, version = int(rng.integers(1, 4)), int(rng.integers(0, 5)), int(rng.integers(0, 3))
        pace = Pace(count, 0, bound)
        ready = rng.integers(version, version + bound + 1, rng.integers(0, 8)).tolist()
        running = rng.integers(version, version + bound + 1, rng.integers(0, 8)).tolist()
        waits = pace.must_wait(ready, running, version)
        if waits:
            assert num_expired(ready + running, version, count) > 0
        elif num_expired(ready + running, version, count) > 0:
            # Only finished groups are too many, before any that runs comes into it.
            first = next(k for k in range(bound + 1) if sum(d <= version + k for d in ready + running) > k * count)
            assert all(deadline > version + first for deadline in running)


def test_waits_for_the_only_group_that_the_next_batches_have_no_room_for():
    """Batches of two, bound 1, at version 5: a group begun at 4 is due now, and two begun at 5 fill the next batch."""
    pace = Pace(2, 1, 1)
    assert pace.must_wait([], [5], 5)
    assert not pace.must_wait([], [6, 6], 5)
    assert pace.must_wait([6], [6, 6], 5)  # three for the next batch
    assert not pace.must_wait([6, 6, 6], [], 5)  # nothing runs: waiting brings nothing


def test_what_is_learned_from_branches_and_what_is_only_evaluated_does_not():
    plan = RolloutPlan((0, 1), SAMPLING, branching=Branching((0,)))
    dispatcher = Dispatcher(Tasks(1), Pace(1), plan)
    dispatcher.begin_batch(0, 1, 0.0)
    dispatcher.add(Job(Task(id="held out"), (0, 1), SAMPLING, 0, done=lambda group: None))
    orders: list[Order] = []
    dispatcher.orders(lambda order: not orders.append(order), 0.0)
    assert {order.task.id: order.branching for order in orders} == {"held out": None, "0": Branching((0,))}
