"""A run that follows another one's schedule does the same, whatever takes how long; what it cannot do it says."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from turngym.envs.task import Task
from turngym.errors import ConfigError, ScheduleError
from turngym.executors import rollouts as rollouts_module
from turngym.executors.bursts import Bursts
from turngym.executors.dispatch import RolloutPlan, Taken
from turngym.executors.draws import Draw
from turngym.executors.following import FollowingDispatcher, FollowingRollouts
from turngym.executors.pacing import Pace
from turngym.executors.rollouts import Rollouts
from turngym.executors.schedule import (
    RolloutSchedule,
    StepRecord,
    check_followed,
    read_schedule,
    step_record,
    to_row,
    turn_versions,
)
from turngym.executors.trajectory import TurnEnd

from .actor_fleet import ActorFleet, Wanders
from .attempts import BROKEN, SAMPLING, Line, attempt, outcome

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


def learn(rollouts: Rollouts, fleet: ActorFleet, num_steps: int, eval_every: int = 0) -> tuple[RolloutSchedule, list[Any]]:
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
        (one.draw.serial, one.began, t.attempt, t.failure, [(s.token_ids.tolist(), s.versions.tolist()) for s in t.sequences])
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


def test_another_environment_is_named_by_step_serial_and_turn(fleet):
    class Longer(Wanders):
        async def reset(self, *, seed=None, options=None):
            seen = await super().reset(seed=seed, options=options)
            self._number = 2  # three turns for every task
            return seen

    with pytest.raises(ScheduleError, match=r"at step 1, serial \d, attempt [01], turn [12]: .*the episode ended after"):
        follow(fleet(env_class=Longer), two_steps(fleet))


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
    with pytest.raises(ScheduleError, match=r"step 1, serial 0, turn 0: it drew task 'task 0' then and 'other 0' now"):
        follow(fleet(), recorded, Others(40))
    with pytest.raises(ScheduleError, match=r"the tasks are used up before it is drawn"):
        follow(fleet(), recorded, Line(1))
    with pytest.raises(ScheduleError, match=r"it had 2 attempts then and has 3 now"):
        follow(fleet(), recorded, numbers=(0, 1, 2))


class Others(Line):
    def draw(self) -> Draw | None:
        draw = super().draw()
        return draw and Draw(draw.serial, Task(id=f"other {draw.serial}", prompt="?"))
