"""A run that follows another one's schedule does the same, whatever takes how long; what it cannot do it says."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from turngym.envs.task import Task
from turngym.errors import DeadlineError, ScheduleError
from turngym.executors.fleet.fleet_engine import Order
from turngym.executors.fleet.turn_gate import ScheduledTurns, TurnGate
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.bursts import Bursts
from turngym.executors.rollouts.dispatch import RolloutPlan, Taken
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.following import FollowingDispatcher, FollowingRollouts
from turngym.executors.rollouts.pacing import Pace
from turngym.executors.rollouts.rollouts import Rollouts
from turngym.executors.rollouts.schedule import (
    GroupRecord,
    RolloutSchedule,
    StepRecord,
    read_schedule,
    step_record,
    to_row,
)

from ..actor_fleet import ActorFleet, Wanders
from ..attempts import SAMPLING, Line, outcome

PACE = Pace(4, batches_ahead=2, max_staleness=3)
PLAN = RolloutPlan((0, 1), SAMPLING, max_failed_attempts=0.5, max_failed_fraction=1.0, lease_s=60.0)
NEVER = lambda: False  # noqa: E731


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(rollouts_module, "POLL_S", 0.005)


@pytest.fixture
def fleet(tiny_model):
    made: list[ActorFleet] = []

    def make(num_engines: int = 2, *, in_lockstep: bool = False, env_class: type = Wanders) -> ActorFleet:
        made.append(ActorFleet(tiny_model, num_engines, in_lockstep=in_lockstep, env_class=env_class))
        return made[-1]

    yield make
    for one in made:
        one.close()


def learn(
    rollouts: Rollouts, fleet: ActorFleet, num_steps: int, eval_every: int = 0
) -> tuple[RolloutSchedule, list[Any]]:
    """Take steps of four groups and publish after each; return the schedule, and all tokens in order."""
    steps: list[StepRecord] = []
    said: list[Any] = []
    rollouts.start()
    try:
        for version in range(num_steps):
            assert rollouts.has_more
            rollouts.begin_batch(version, num_steps - version)
            taken = rollouts.take(4, NEVER)
            assert taken is not None
            rollouts.begin_learning()
            steps.append(step_record(version + 1, version, [taken.finished]))
            said += tokens(taken)
            time.sleep(random.random() * 0.02)
            rollouts.drop_stale(version + 1)
            fleet.publish(version + 1)
            if eval_every and version % eval_every == 0:
                groups = rollouts.run_all([Task(id=f"held out {n}") for n in range(3)], (0, 1), SAMPLING, NEVER, print)
                said.append([t.messages for group in groups or () for t in group.trajectories])
    finally:
        rollouts.close()
    return RolloutSchedule(tuple(steps)), said


def tokens(taken: Taken) -> list[Any]:
    return [
        (
            one.draw.serial,
            one.began,
            t.attempt,
            t.failure,
            [(s.token_ids.tolist(), s.versions.tolist()) for s in t.sequences],
        )
        for one in taken.finished
        for t in one.group.trajectories
    ]


@pytest.mark.slow
def test_thirty_steps_ahead_of_the_learner_are_repeated(fleet, tmp_path):
    """Whatever takes how long, and with another number of engines."""
    first = fleet()
    recorded, said = learn(Rollouts(first, Line(300), PACE, PLAN), first, 30)
    groups = [group for _, group in recorded.of_serial.values()]
    assert len(said) == 30 * 4 * 2
    assert any(group.failed for group in groups)
    assert any(len(set(turns)) > 1 for group in groups for turns in group.turns)  # an update came between two turns
    assert any(group.began < step.version for step in recorded.steps for take in step.takes for group in take)
    file = tmp_path / "schedule.jsonl"
    file.write_text("".join(json.dumps(to_row(step)) + "\n" for step in recorded.steps))
    second = fleet(3)
    rollouts = FollowingRollouts(read_schedule(file), second, Line(300), PACE, PLAN, NEVER)
    again, said_again = learn(rollouts, second, 30)
    assert said_again == said
    assert again == recorded
    assert not rollouts.has_more


@pytest.mark.slow
def test_fifty_synchronous_steps_are_the_same_in_two_runs(fleet):
    """Also which attempts sampled beside each other, and held-out tasks."""

    def run() -> tuple[Any, ...]:
        one = fleet(in_lockstep=True)
        return (*learn(Rollouts(Bursts(one), Line(300), Pace(4), PLAN), one, 50, eval_every=10), one.waves)

    first = run()
    assert len(first[1]) == 50 * 4 * 2 + 5
    assert all(len(waves) > 50 for waves in first[2])
    assert run() == first


def two_steps(fleet: Callable[..., ActorFleet]) -> RolloutSchedule:
    one = fleet()
    return learn(Rollouts(one, Line(40), PACE, PLAN), one, 3)[0]


def follow(fleet: ActorFleet, schedule: RolloutSchedule, line: Line | None = None, **changes: Any) -> None:
    plan = replace(PLAN, **changes)
    learn(FollowingRollouts(schedule, fleet, line or Line(40), PACE, plan, NEVER), fleet, len(schedule.steps))


@pytest.mark.slow
def test_another_environment_is_named_by_step_serial_and_turn(fleet):
    class Longer(Wanders):
        async def reset(self, *, seed=None, options=None):
            seen = await super().reset(seed=seed, options=options)
            self._number = 2  # three turns for every task
            return seen

    with pytest.raises(
        ScheduleError, match=r"at step \d, serial \d+, attempt [01], turn [12]: .*the episode ended after"
    ) as raised:
        follow(fleet(env_class=Longer), two_steps(fleet))
    assert str(raised.value).count("cannot be followed") == 1


def test_what_failed_then_and_does_not_now_is_named(fleet):
    class Robust(Wanders):
        async def step(self, action):
            self._turn += 1
            return ".", 1.0, self._turn > self._number % 3, False, {}

    recorded = two_steps(fleet)
    serials = [serial for serial, (_, group) in recorded.of_serial.items() if group.failed]
    assert serials
    with pytest.raises(ScheduleError, match=r"serial \d+, attempt [01], turn \d: it failed then, and not now"):
        follow(fleet(env_class=Robust), recorded)


def test_another_data_set_is_named(fleet):
    recorded = two_steps(fleet)
    drawn = r"at step \d, serial (\d+), turn 0: it drew task 'task \1' then and 'other \1' now"
    with pytest.raises(ScheduleError, match=drawn):
        follow(fleet(), recorded, Others(40))
    with pytest.raises(ScheduleError, match=r"the tasks are used up before it is drawn"):
        follow(fleet(), recorded, Line(1))
    with pytest.raises(ScheduleError, match=r"it had 2 attempts then and has 3 now"):
        follow(fleet(), recorded, numbers=(0, 1, 2))


class Others(Line):
    def draw(self) -> Draw | None:
        draw = super().draw()
        return draw and Draw(draw.serial, Task(id=f"other {draw.serial}", prompt="?"))


class Bench:
    """A dispatcher that follows a schedule of two steps: serials 0 and 2, then 3, and all began at version 0."""

    def __init__(self, num_tasks: int = 6, **plan: Any) -> None:
        groups = [GroupRecord(serial, f"task {serial}", 0, ((0,), (0,))) for serial in (0, 2, 3)]
        steps = (StepRecord(1, 0, (tuple(groups[:2]),)), StepRecord(2, 1, (tuple(groups[2:]),)))
        self.dispatcher = FollowingDispatcher(
            RolloutSchedule(steps), Line(num_tasks), PACE, RolloutPlan((0, 1), SAMPLING, **plan)
        )

    def orders(self) -> list[Order]:
        found: list[Order] = []
        self.dispatcher.orders(lambda order: found.append(order) or True, 0.0)
        return found


def test_what_is_recorded_begins_at_its_version_and_is_taken_in_its_step():
    bench = Bench()
    dispatcher = bench.dispatcher
    assert (bench.orders(), dispatcher.has_begun_all) == ([], True)  # nothing before the first step
    dispatcher.begin_batch(0, 2, 0.0)
    assert not dispatcher.has_begun_all
    orders = bench.orders()
    assert [order.task.id for order in orders] == ["task 0", "task 2", "task 3"]
    assert [order.turns.step for order in orders if order.turns] == [1, 1, 2]
    assert dispatcher.has_begun_all
    assert dispatcher.state().running == (0, 1, 2, 3)  # serial 1 was drawn; whoever goes on from here draws it again
    dispatcher.note(outcome(orders[2]), 0.0)
    dispatcher.note(outcome(orders[1]), 0.0)
    assert dispatcher.take(2, 0.0) is None  # the third is there and belongs to the next step
    dispatcher.note(outcome(orders[0]), 0.0)
    assert serials(dispatcher.take(2, 0.0)) == [0, 2]
    assert serials(dispatcher.take(1, 0.0)) == []  # no more came then
    dispatcher.begin_learning()
    assert dispatcher.drop_stale(1) == []
    dispatcher.begin_batch(1, 1, 0.0)
    assert serials(dispatcher.take(2, 0.0)) == [3]
    assert not dispatcher.has_more
    with pytest.raises(ScheduleError, match="the schedule has 2 steps, and one more is asked for"):
        dispatcher.begin_batch(2, 1, 0.0)


def test_other_steps_than_then_are_named():
    bench = Bench()
    with pytest.raises(ScheduleError, match="step 1 learned on version 0 then, and the learner has published 1"):
        bench.dispatcher.begin_batch(1, 2, 0.0)
    bench = Bench()
    bench.dispatcher.begin_batch(0, 2, 0.0)
    with pytest.raises(ScheduleError, match="step 1 took 2 tasks at once then and wants 1 now"):
        bench.dispatcher.take(1, 0.0)


def test_attempts_that_fail_now_are_named_and_what_they_failed_by():
    bench = Bench()
    bench.dispatcher.begin_batch(0, 2, 0.0)
    order = bench.orders()[1]
    with pytest.raises(ScheduleError, match=r"step 1, serial 2, attempt 1, turn 1: it failed now .*: env: broken"):
        bench.dispatcher.note(outcome(order, failed=[1]), 0.0)


class Idle:
    """Engines that take orders, as long as any lives, and do nothing."""

    lives = True

    def submit(self, order):
        return self.lives

    def poll(self, timeout_s):
        time.sleep(timeout_s)
        return []

    def cancel(self, keys):
        pass

    def unfinished_turns(self, version):
        return [f"turn 1 at {version}"]


def test_an_update_names_what_it_waits_for_in_vain():
    schedule = Bench().dispatcher._schedule
    plan = replace(PLAN, lease_s=0.05)
    rollouts = FollowingRollouts(schedule, Idle(), Line(9), PACE, plan, NEVER)
    rollouts.start()
    rollouts.begin_batch(0, 2)
    for _ in range(2000):
        if rollouts._dispatcher.has_begun_all:
            break
        time.sleep(0.005)
    with pytest.raises(DeadlineError, match=r"the update to version 1 waited 0.05 s .*: turn 1 at 0"):
        rollouts.drop_stale(1)
    rollouts.close()


@pytest.mark.parametrize("has_orders", [True, False])
def test_an_update_ends_at_once_where_nothing_can_sample_what_it_waits_for(has_orders):
    """Its lease is an hour; the last engine died with the orders, or before it took any."""
    engines = Idle()
    engines.lives = has_orders
    rollouts = FollowingRollouts(
        Bench().dispatcher._schedule, engines, Line(9), PACE, replace(PLAN, lease_s=3600.0), NEVER
    )
    rollouts.begin_batch(0, 2)
    rollouts._dispatcher.orders(engines.submit, 0.0)
    assert rollouts._dispatcher.has_begun_all is has_orders
    engines.lives = False
    first = "turn 1 at 0" if has_orders else "what is to begin"
    with pytest.raises(ScheduleError, match=f"no engine lives that has the weights of version 0, .*: {first}"):
        rollouts.drop_stale(1)


async def test_what_waits_for_a_version_ends_with_the_schedule():
    """Two turns of one order: the second waits for an update that nobody will bring once the first has failed."""
    gate = TurnGate()
    turns = ScheduledTurns(3, 1, GroupRecord(0, "t", 0, ((0, 1), (0,))))
    waits = asyncio.Event()

    async def later() -> None:
        waits.set()
        await gate.reach(1)

    async def order() -> None:
        with gate.following(turns, (0, 1)):
            waiting = asyncio.create_task(later())
            await waits.wait()
            gate.fail("the first is wrong")
            with pytest.raises(ScheduleError, match=r"^the first is wrong$"):
                await waiting

    async with asyncio.timeout(60):
        with pytest.raises(ScheduleError, match=r"^the first is wrong$"):
            await order()
        with pytest.raises(ScheduleError, match=r"^the first is wrong$"):
            await gate.unfinished(0, [3], 60.0)


def serials(taken: Taken | None) -> list[int]:
    assert taken is not None
    return [one.draw.serial for one in taken.finished]
