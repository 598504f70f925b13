"""What becomes of each draw, whatever engines, episodes and the learner do."""

from dataclasses import replace

import numpy as np
import pytest

from turngym.envs.task import Task
from turngym.errors import TrajectoryError
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.fleet.fleet_engine import Order
from turngym.executors.rollouts.buffer import Group
from turngym.executors.rollouts.dispatch import Dispatcher, Job, RolloutPlan
from turngym.executors.rollouts.pacing import Pace

from ..attempts import SAMPLING, Line, outcome


class Bench:
    """A dispatcher, its tasks, and the orders that it gave out."""

    def __init__(self, num_tasks: int = 20, *, groups: int = 2, attempts: int = 2, pace: Pace | None = None, **plan):
        self.line = Line(num_tasks)
        self.dispatcher = Dispatcher(
            self.line, pace or Pace(groups), RolloutPlan(tuple(range(attempts)), SAMPLING, **plan)
        )
        self.counts = self.dispatcher.counts

    def begin(self, version: int = 0, num_batches_left: int = 99, now: float = 0.0) -> list[Order]:
        self.dispatcher.begin_batch(version, num_batches_left, now)
        return self.orders(now)

    def orders(self, now: float = 0.0) -> list[Order]:
        """What is given out now."""
        found: list[Order] = []
        self.dispatcher.orders(lambda order: found.append(order) or True, now)
        return found

    def take(self, count: int = 2, now: float = 0.0) -> list[int] | None:
        """Serials of what the learner gets; None: it waits."""
        taken = self.dispatcher.take(count, now)
        return None if taken is None else [one.draw.serial for one in taken.finished]


def ids(orders: list[Order]) -> list[str]:
    return [order.task.id.removeprefix("task ") for order in orders]


def test_in_step_one_batch_is_begun_and_nothing_while_the_learner_works():
    bench = Bench()
    assert bench.orders() == []  # nothing before the first batch is asked for
    first, second = bench.begin()
    assert (ids([first, second]), first.numbers) == (["0", "1"], (0, 1))
    bench.dispatcher.note(outcome(second), 1.0)
    assert (bench.take(), bench.dispatcher.num_ready, bench.dispatcher.num_open) == (None, 1, 2)
    bench.dispatcher.note(outcome(first), 2.0)
    assert bench.take() == [0, 1]
    assert bench.orders() == []  # also not before it is told that the learner works
    bench.dispatcher.begin_learning()
    assert bench.orders() == []
    assert ids(bench.begin(version=1)) == ["2", "3"]


def test_ahead_of_the_learner_so_many_batches_are_begun():
    bench = Bench(pace=Pace(2, batches_ahead=1, max_staleness=1))
    orders = bench.begin()
    assert ids(orders) == ["0", "1", "2", "3"]
    for order in orders:
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [0, 1]
    assert bench.orders() == []
    bench.dispatcher.begin_learning()
    assert bench.orders() == []  # the batch ahead is there
    assert ids(bench.begin(version=1)) == ["4", "5"]
    assert bench.take() == [2, 3]


def test_no_order_is_given_out_while_no_engine_takes_one_and_none_is_lost():
    bench = Bench()
    bench.dispatcher.begin_batch(0, 99, 0.0)
    bench.dispatcher.orders(lambda order: False, 0.0)
    assert bench.dispatcher.num_open == 2
    assert bench.dispatcher.state().running == (0, 1)
    assert ids(bench.orders()) == ["0", "1"]


def test_lost_attempts_run_again_and_only_they():
    bench = Bench(attempts=3)
    order, other = bench.begin()
    bench.dispatcher.note(outcome(order, lost=[0, 2]), 0.0)
    bench.dispatcher.note(outcome(other), 0.0)
    assert bench.take() is None
    (again,) = bench.orders()
    assert (again.task, again.numbers, again.key != order.key) == (order.task, (0, 2), True)
    bench.dispatcher.note(outcome(again), 0.0)
    taken = bench.dispatcher.take(2, 0.0)
    assert [t.attempt for t in taken.finished[0].group.trajectories] == [0, 1, 2]
    assert bench.counts["attempts_lost"] == 2


def test_an_order_without_an_answer_is_given_out_again_and_its_late_answer_is_not_counted_twice():
    bench = Bench(lease_s=10.0)
    late, well = bench.begin(now=0.0)
    bench.dispatcher.note(outcome(well), 5.0)
    assert bench.dispatcher.end_leases(10.0) == []
    assert bench.dispatcher.end_leases(10.1) == [late.key]
    (again,) = bench.orders(now=11.0)
    assert (again.task, again.numbers) == (late.task, (0, 1))
    assert bench.dispatcher.end_leases(20.0) == []  # a new lease began with it
    bench.dispatcher.note(outcome(late), 12.0)
    assert bench.take() is None
    bench.dispatcher.note(outcome(again), 13.0)
    bench.dispatcher.note(outcome(again), 14.0)
    assert bench.take() == [0, 1]
    assert bench.counts["orders_late"] == 1


def test_attempts_that_are_lost_too_often_have_failed_as_lost():
    bench = Bench(num_tasks=2, attempts=3, max_leases=2, lease_s=10.0)
    order, other = bench.begin()
    bench.dispatcher.note(outcome(other), 0.0)
    bench.dispatcher.note(outcome(order, lost=[2]), 0.0)
    (again,) = bench.orders(now=1.0)
    assert again.numbers == (2,)
    assert bench.dispatcher.end_leases(12.0) == [again.key]
    assert bench.orders() == []
    taken = bench.dispatcher.take(2, 12.0)
    failures = [t.failure for t in taken.finished[0].group.trajectories]
    assert failures[:2] == [None, None]
    assert failures[2].kind is FailureKind.LOST
    assert failures[2].message == ("no answer came within its lease of 10 s, and 2 orders for it came to nothing")


def test_orders_that_others_took_down_with_them_are_not_counted():
    bench = Bench(num_tasks=2, max_leases=1)
    order, other = bench.begin()
    bench.dispatcher.note(outcome(other), 0.0)
    for _ in range(5):
        bench.dispatcher.note(replace(outcome(order, lost=order.numbers), is_blameless=True), 0.0)
        (order,) = bench.orders()
    bench.dispatcher.note(outcome(order, lost=order.numbers), 0.0)
    assert bench.orders() == []  # this one was its own


def test_a_group_that_mostly_fails_is_dropped_and_another_task_drawn():
    bench = Bench(attempts=4, max_failed_fraction=0.9)
    first, second = bench.begin()
    bench.dispatcher.note(outcome(first, failed=[0, 1]), 0.0)  # half is allowed
    bench.dispatcher.note(outcome(second, failed=[0, 1, 2]), 0.0)
    (third,) = bench.orders()
    assert third.task.id == "task 2"
    bench.dispatcher.note(outcome(third), 0.0)
    taken = bench.dispatcher.take(2, 0.0)
    assert [one.draw.serial for one in taken.finished] == [0, 2]
    assert [group.task.id for group in taken.dropped] == ["task 1"]
    assert bench.counts["groups_dropped"] == 1
    bench.dispatcher.begin_learning()
    assert bench.dispatcher.state().running == ()  # a dropped task is used up


def test_a_group_without_a_valid_attempt_is_dropped_whatever_the_bound():
    bench = Bench(num_tasks=4, attempts=1, max_failed_attempts=1.0, max_failed_fraction=1.0)
    first, _ = bench.begin()
    bench.dispatcher.note(outcome(first, failed=[0]), 0.0)
    assert bench.counts["groups_dropped"] == 1


def test_too_many_failures_since_the_last_batch_stop_the_run():
    bench = Bench(attempts=2, max_failed_fraction=0.5)
    first, second = bench.begin()
    bench.dispatcher.note(outcome(first, failed=[0, 1]), 0.0)  # 2 of 2, and not a batch of attempts yet
    with pytest.raises(TrajectoryError, match=r"4 of 4 attempts .* env: broken"):
        bench.dispatcher.note(outcome(second, failed=[0, 1]), 0.0)


def test_failures_of_an_earlier_batch_do_not_count():
    """2 of 6 each time; both batches together would have 4 of 8 when the second one's task is dropped."""
    bench = Bench(attempts=2, max_failed_fraction=0.4)
    for version in range(2):
        first, second = bench.begin(version)
        bench.dispatcher.note(outcome(first, version, failed=[0, 1]), 0.0)
        (third,) = bench.orders()
        for order in (second, third):
            bench.dispatcher.note(outcome(order, version), 0.0)
        assert bench.take() == [3 * version + 1, 3 * version + 2]
        bench.dispatcher.begin_learning()


def test_finished_groups_that_are_too_old_are_given_back_and_counted():
    bench = Bench(pace=Pace(2, batches_ahead=1, max_staleness=1))
    for order in bench.begin():
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [0, 1]
    bench.dispatcher.begin_learning()
    assert bench.dispatcher.drop_stale(1) == []
    assert bench.dispatcher.drop_stale(2) == []  # finished, so there is no order to cancel
    assert bench.line.serials[:2] == [3, 2]
    assert (bench.counts["groups_expired"], bench.counts["attempts_stale"]) == (2, 4)


def test_running_and_waiting_groups_that_are_too_old_are_given_back_and_their_orders_cancelled():
    bench = Bench(pace=Pace(2, batches_ahead=1, max_staleness=1))
    orders = bench.begin()
    bench.dispatcher.note(outcome(orders[1], lost=[0]), 0.0)  # waits to run again
    assert bench.dispatcher.drop_stale(1) == []
    assert sorted(bench.dispatcher.drop_stale(2)) == sorted(o.key for o in orders if o is not orders[1])
    assert sorted(bench.line.serials) == list(range(20))
    assert bench.counts["groups_expired_running"] == 4
    assert bench.dispatcher.num_open == 0
    bench.dispatcher.note(outcome(orders[0]), 0.0)  # its answer was on the way
    assert bench.dispatcher.num_ready == 0


def test_oversampling_takes_what_is_first_and_gives_the_rest_back():
    bench = Bench(pace=Pace(2, generate_groups=3))
    orders = bench.begin()
    assert ids(orders) == ["0", "1", "2"]
    for order in orders[1:]:
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [1, 2]
    bench.dispatcher.begin_learning()
    assert bench.dispatcher.drop_stale(1) == [orders[0].key]
    assert bench.line.serials[0] == 0


def test_a_filter_that_asks_for_more_gets_only_what_the_batch_still_wants():
    """In step whatever is begun beyond that would expire at the next update."""
    bench = Bench(groups=4)
    for order in bench.begin():
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take(4) == [0, 1, 2, 3]
    assert bench.take(1) is None  # one of four was left out
    (order,) = bench.orders()
    bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take(1) == [4]
    bench.dispatcher.begin_learning()
    assert len(bench.begin(version=1)) == 4
    assert bench.counts["groups_expired"] == 0


def test_a_batch_waits_for_stragglers_only_so_long():
    bench = Bench(straggler_s=10.0)
    first, straggler = bench.begin(now=0.0)
    bench.dispatcher.note(outcome(first), 5.0)
    assert bench.take(now=15.0) is None
    taken = bench.dispatcher.take(2, 15.1)
    assert ([one.draw.serial for one in taken.finished], taken.is_late) == ([0], True)
    assert bench.counts["batches_hurried"] == 1
    bench.dispatcher.begin_learning()
    assert bench.dispatcher.drop_stale(1) == [straggler.key]
    assert ids(bench.begin(version=1)) == ["1", "2"]


def test_a_batch_without_anything_waits_on():
    bench = Bench(straggler_s=10.0)
    bench.begin(now=0.0)
    assert bench.take(now=100.0) is None


def test_a_full_batch_that_comes_late_was_not_hurried():
    bench = Bench(straggler_s=10.0, pace=Pace(2, batches_ahead=1, max_staleness=2))
    for order in bench.begin(now=0.0)[:2]:
        bench.dispatcher.note(outcome(order), 0.0)
    taken = bench.dispatcher.take(2, 99.0)
    assert (len(taken.finished), taken.is_late, bench.counts["batches_hurried"]) == (2, False, 0)


def test_a_straggler_that_would_expire_is_hurried_past_with_a_full_batch():
    bench = Bench(num_tasks=4, straggler_s=10.0, pace=Pace(2, batches_ahead=1, max_staleness=1))
    orders = bench.begin(now=0.0)
    for order in orders[:2]:
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [0, 1]
    bench.dispatcher.begin_learning()
    bench.begin(version=1, now=20.0)
    bench.dispatcher.note(outcome(orders[2], version=1), 20.0)
    assert bench.take(1, now=20.0) is None  # the other one began at version 0 and would be too old
    assert bench.take(1, now=31.0) == [2]
    assert bench.counts["batches_hurried"] == 1


def test_the_last_batch_is_as_short_as_what_is_left():
    bench = Bench(num_tasks=3)
    for order in bench.begin():
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [0, 1]
    bench.dispatcher.begin_learning()
    assert bench.dispatcher.has_more
    (last,) = bench.begin(version=1)
    assert bench.take() is None
    assert bench.dispatcher.has_more  # what runs is still to come
    bench.dispatcher.note(outcome(last, version=1), 0.0)
    assert bench.take() == [2]
    assert not bench.dispatcher.has_more
    assert bench.take() == []


def test_no_more_is_begun_than_the_steps_that_are_left_will_take():
    bench = Bench(pace=Pace(2, batches_ahead=3, max_staleness=3))
    orders = bench.begin(num_batches_left=2)
    assert ids(orders) == ["0", "1", "2", "3"]
    for order in orders:
        bench.dispatcher.note(outcome(order), 0.0)
    assert bench.take() == [0, 1]
    bench.dispatcher.begin_learning()
    assert bench.orders() == []


def test_what_is_none_of_the_runs_tasks_runs_beside_them_and_can_be_withdrawn():
    bench = Bench()
    groups: list[Group] = []
    bench.begin()
    for name in "ab":
        bench.dispatcher.add(Job(Task(id=name), (0,), SAMPLING, 0, done=groups.append))
    first, second = bench.orders()
    assert [order.task.id for order in (first, second)] == ["a", "b"]
    bench.dispatcher.note(outcome(second, failed=[0]), 0.0)  # a failed one is the caller's, too
    assert [group.task.id for group in groups] == ["b"]
    assert bench.dispatcher.drop_stale(99)  # those of the run are too old, these are of no age
    assert bench.dispatcher.withdraw(lambda job: job.done is not None) == [first.key]
    assert bench.dispatcher.state().running == ()


def test_a_restored_dispatcher_goes_on_where_the_other_stood():
    pace = Pace(2, batches_ahead=1, max_staleness=1)
    bench = Bench(pace=pace, attempts=1)
    orders = bench.begin()
    for order in orders[1:3]:
        bench.dispatcher.note(outcome(order), 0.0)
    bench.dispatcher.note(outcome(orders[3], lost=[0]), 0.0)
    state = bench.dispatcher.state()
    assert state.running == (0, 3)
    assert [one.draw.serial for one in state.finished] == [1, 2]
    second = Bench(num_tasks=0, pace=pace, attempts=1)
    second.dispatcher.restore(state.finished, state.counts)
    assert second.counts["attempts_lost"] == 1
    second.begin()
    assert second.take() == [1, 2]


class Walk(Bench):
    """A dispatcher, engines and a learner that do what chance says, and the books of where each draw is."""

    def __init__(self, seed: int, **words) -> None:
        self.rng = np.random.default_rng(seed)
        super().__init__(attempts=3, lease_s=5.0, max_failed_fraction=1.0, **words)
        self.given: list[tuple[Order, int]] = []  # and the version that samples it
        self.used: list[int] = []
        self.dropped = 0
        self.version, self.now, self.most_lag = 0, 0.0, 0

    def step(self, num_batches: int) -> bool:
        """One batch and its update; whether there was any."""
        if not self.dispatcher.has_more:
            return False
        self.dispatcher.begin_batch(self.version, num_batches, self.now)
        wanted = self.groups = 4
        while wanted:
            self.engines()
            taken = self.dispatcher.take(wanted, self.now)
            if taken is None:
                self.check()
                continue
            self.dropped += len(taken.dropped)
            if not taken.finished:
                break
            self.used += [one.draw.serial for one in taken.finished]
            self.check()
            trajectories = [t for one in taken.finished for t in one.group.trajectories]
            lags = [self.version - t.oldest_version for t in trajectories if t.is_valid]
            self.most_lag = max(self.most_lag, *lags)
            wanted -= sum(self.rng.random() < 0.8 for _ in taken.finished)  # the rest is filtered out
            if taken.is_late:
                break
        self.dispatcher.begin_learning()
        for _ in range(self.rng.integers(4)):
            self.engines()
        cancelled = self.dispatcher.drop_stale(self.version + 1)
        self.given = [one for one in self.given if one[0].key not in cancelled]
        self.version += 1
        return True

    def engines(self) -> None:
        self.now += 1.0
        fails = self.rng.random() < 0.1
        self.dispatcher.orders(lambda order: not fails and not self.given.append((order, self.version)), self.now)
        for place in reversed(range(len(self.given))):
            chance = self.rng.random()
            if chance < 0.3:
                order, version = self.given.pop(place)
                lost = [n for n in order.numbers if self.rng.random() < 0.1]
                failed = [n for n in order.numbers if self.rng.random() < 0.15]
                self.dispatcher.note(outcome(order, version, lost=lost, failed=failed), self.now)
            elif chance < 0.31:
                self.given.pop(place)  # its answer never comes
        self.dispatcher.end_leases(self.now)
        self.check()

    def check(self) -> None:
        """Every draw is in exactly one place."""
        state = self.dispatcher.state()
        places = [*self.line.serials, *state.running, *(one.draw.serial for one in state.finished), *self.used]
        assert len(set(places)) == len(places)
        assert len(places) + self.counts["groups_dropped"] == 60


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("ahead", "staleness"), [(0, 0), (1, 1), (1, 2), (3, 3)])
def test_whatever_happens_every_draw_is_in_one_place_and_none_is_too_old_or_thrown_away(seed, ahead, staleness):
    walk = Walk(seed, num_tasks=60, pace=Pace(4, batches_ahead=ahead, max_staleness=staleness))
    while walk.step(99):
        pass
    assert len(walk.used) + walk.dropped == 60
    assert walk.most_lag <= staleness
    # With the pacing right nothing expires.
    assert [walk.counts[f"groups_expired{how}"] for how in ("", "_running")] == [0, 0]
    assert walk.counts["attempts_stale"] == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("pace", "straggler_s"),
    [
        (Pace(4, generate_groups=7), None),
        (Pace(4, batches_ahead=2, max_staleness=2, generate_groups=6), None),
        (Pace(4, batches_ahead=1, max_staleness=1), 1.5),
    ],
)
def test_what_expires_by_design_is_counted_and_drawn_again(seed, pace, straggler_s):
    walk = Walk(seed, num_tasks=60, pace=pace, straggler_s=straggler_s)
    while walk.step(99):
        pass
    assert len(walk.used) + walk.dropped == 60
    assert walk.most_lag <= pace.max_staleness
