"""The rollouts' thread beside the learner's: real episodes, scripted engines, and what goes wrong between them."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.builtin.python_tool import PythonTool
from turngym.envs.task import Task
from turngym.errors import EngineDeadError, EngineError, TrajectoryError, WorkerError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.rollouts.buffer import Group
from turngym.executors.rollouts.dispatch import RolloutPlan
from turngym.executors.rollouts.pacing import Pace
from turngym.executors.rollouts.rollouts import Rollouts
from turngym.sandbox.registration import close_shared, shared_sandbox

from ..attempts import Line
from ..local_fleet import LocalFleet, says

SAMPLING = Sampling(max_tokens=4)
NEVER = lambda: False  # noqa: E731


class Bench:
    def __init__(self, fleet: LocalFleet, rollouts: Rollouts, line: Line) -> None:
        self.fleet, self.rollouts, self.line = fleet, rollouts, line

    def take(self, count: int = 2) -> list[int]:
        taken = self.rollouts.take(count, NEVER)
        assert taken is not None
        return [one.draw.serial for one in taken.finished]

    def calls_until(self, count: int) -> Callable[[], bool]:
        """Says no so many times."""
        calls = iter(range(count))
        return lambda: next(calls, None) is None


@pytest.fixture
def bench(multi_turn, echo):
    """Make rollouts over a local fleet; not started."""
    made: list[Bench] = []

    def make(
        factory=echo,
        make_engine=says("A"),  # noqa: B008
        num_engines: int = 1,
        *,
        pace: Pace | None = None,
        num_tasks: int = 8,
        max_restarts: int = 0,
        plan: dict | None = None,
        **limits,
    ) -> Bench:
        fleet = LocalFleet(lambda: multi_turn(factory, **limits), make_engine, num_engines, max_restarts=max_restarts)
        line = Line(num_tasks)
        plan = RolloutPlan(**({"numbers": (0, 1), "sampling": SAMPLING} | (plan or {})))
        made.append(Bench(fleet, Rollouts(fleet, line, pace or Pace(2), plan), line))
        return made[-1]

    yield make
    for one in made:
        one.rollouts.close()
        one.fleet.close()


class Waits(AsyncEnv):
    """Waits in its first step until it is cancelled; counts those that are open."""

    num_open = 0
    num_waiting = 0

    def __init__(self) -> None:
        Waits.num_open += 1

    async def reset(self, *, seed=None, options=None):
        return "go", {}

    async def step(self, action):
        Waits.num_waiting += 1
        try:
            await asyncio.sleep(600)
        finally:
            Waits.num_waiting -= 1

    async def close(self):
        Waits.num_open -= 1


@pytest.mark.slow
def test_batches_come_while_the_learner_works(bench):
    run = bench(pace=Pace(2, batches_ahead=1, max_staleness=1))
    run.rollouts.start()
    serials: list[int] = []
    for version in range(4):
        run.rollouts.begin_batch(version, 4 - version)
        taken = run.rollouts.take(2, NEVER)
        serials += [one.draw.serial for one in taken.finished]
        assert max(serials) < 2 * version + 4  # one batch ahead, of which a quick group may come before a slow one
        assert {t.oldest_version for one in taken.finished for t in one.group.trajectories} == {max(0, version - 1)}
        run.rollouts.begin_learning()
        if version < 3:  # the batch ahead is finished before the learner is
            run.fleet.wait_for(lambda: run.rollouts.num_ready == 2, "the batch ahead")
        run.rollouts.drop_stale(version + 1)
        run.fleet.publish(version + 1)
    assert sorted(serials) == list(range(8))
    assert not run.rollouts.has_more
    assert run.rollouts.counts.get("groups_expired", 0) == 0


@pytest.mark.slow
def test_a_stop_is_heard_while_waiting(bench):
    run = bench(Waits)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    idle: list[int] = []
    assert run.rollouts.take(2, run.calls_until(3), lambda: idle.append(1)) is None
    assert idle == [1, 1, 1]


def test_an_error_of_the_thread_reaches_the_learners(bench):
    run = bench(Waits)
    run.fleet.poll = lambda timeout_s: 1 / 0
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    with pytest.raises(WorkerError, match=r"rollouts' thread ended by an error: ZeroDivisionError") as error:
        run.take()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(WorkerError):
        run.rollouts.run_all([Task(id="held out")], (0,), SAMPLING, NEVER, print)


def test_too_many_failures_reach_the_learners(bench):
    class Breaks(Env):
        def reset(self, *, seed=None, options=None):
            raise OSError("no disk")

    run = bench(Breaks)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    with pytest.raises(TrajectoryError, match=r"4 of 4 attempts .* env: OSError: no disk"):
        run.take()


def test_cancelling_frees_slot_environment_and_threads(bench):
    """Stale groups are cancelled: everything that they held is free again."""
    Waits.num_open = 0
    run = bench(Waits, num_engines=2)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    run.fleet.wait_for(lambda: Waits.num_waiting == 4, "four steps that wait")
    assert (Waits.num_open, len(run.fleet._running)) == (4, 2)
    run.rollouts.begin_learning()
    run.rollouts.drop_stale(1)
    run.fleet.wait_for(lambda: Waits.num_open == 0 and run.fleet.num_running == 0, "an end of all episodes")
    assert [seat.load for seat in run.fleet.seats] == [0, 0]
    assert run.line.serials[:2] == [1, 0]


def test_cancelling_frees_the_engines_slot(bench):
    run = bench(make_engine=lambda: ScriptedEngine(lambda request: Reply([65], [-1.0], latency_s=600.0)))
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    engine = run.fleet.seats[0].engine
    run.fleet.wait_for(lambda: engine.num_running == 4, "four running requests")
    run.rollouts.close()
    run.fleet.wait_for(lambda: engine.num_running == 0, "an idle engine")


def test_cancelling_frees_the_sandbox(bench):
    """The model's code sleeps in a real sandbox when its episode is cancelled."""
    code = list(b"```python\nimport time; time.sleep(600)\n```")
    run = bench(
        partial(PythonTool, cell_s=600),
        lambda: ScriptedEngine(lambda request: code),
        plan={"sampling": Sampling(max_tokens=200)},
    )
    run.rollouts.start()
    try:
        run.rollouts.begin_batch(0, 9)
        sandbox = run.fleet.on_loop(shared_sandbox("local"))
        run.fleet.wait_for(lambda: sandbox.num_sessions == 4, "four sessions")
        run.rollouts.close()
        run.fleet.wait_for(lambda: sandbox.num_sessions == 0 and run.fleet.num_running == 0, "an end of all sessions")
    finally:
        run.fleet.on_loop(close_shared())


def test_close_twice_and_before_the_start_is_no_harm(bench):
    run = bench()
    run.rollouts.close()
    run.rollouts.close()
    assert run.fleet.num_submitted == 0


def test_held_out_tasks_run_beside_training_and_in_their_order(bench):
    run = bench(pace=Pace(2, batches_ahead=1, max_staleness=1))
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    told: list[Group] = []
    tasks = [Task(id="x"), Task(id="y"), Task(id="x")]  # a set may hold a task twice
    groups = run.rollouts.run_all(tasks, (0, 1, 2), SAMPLING, NEVER, told.extend)
    assert [group.task.id for group in groups] == ["x", "y", "x"]
    assert all(group.num_valid == 3 for group in groups)
    assert sorted(map(id, told)) == sorted(map(id, groups))
    assert set(run.take()) < {0, 1, 2, 3}


def test_a_stop_withdraws_the_held_out_tasks_and_leaves_the_others(bench):
    Waits.num_open = 0
    run = bench(Waits)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    run.fleet.wait_for(lambda: Waits.num_waiting == 4, "the run's own")
    held_out = [Task(id="x")]
    is_begun = lambda: Waits.num_waiting == 5  # noqa: E731
    assert run.rollouts.run_all(held_out, (0,), SAMPLING, is_begun, print) is None
    run.fleet.wait_for(lambda: Waits.num_open == 4, "only the run's own")
    assert run.rollouts.state(lambda serials: serials)[1] == (0, 1)


def test_what_ended_before_a_stop_has_been_told(bench):
    class WaitsForOne(Waits):
        async def reset(self, *, seed=None, options=None):
            self.is_long = options["task"].id == "long"
            return "go", {}

        async def step(self, action):
            return await super().step(action) if self.is_long else ("", 1.0, True, False, {})

    run = bench(WaitsForOne)
    run.rollouts.start()
    told: list[Group] = []
    held_out = [Task(id="long"), Task(id="a"), Task(id="b")]
    assert run.rollouts.run_all(held_out, (0, 1), SAMPLING, lambda: len(told) == 2, told.extend) is None
    assert sorted(group.task.id for group in told) == ["a", "b"]
    assert all(group.num_valid == 2 for group in told)


def test_an_engine_that_dies_leaves_its_requests_to_the_other(bench):
    """Two attempts at each of two tasks, two turns each: the first request kills the engine it went to."""
    gone = threading.Event()

    def script(request):
        if not gone.is_set():
            gone.set()
            raise EngineDeadError("out of memory")
        return [65]

    run = bench(make_engine=lambda: ScriptedEngine(script), num_engines=2)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    taken = run.rollouts.take(2, NEVER)
    assert all(one.group.num_valid == 2 for one in taken.finished)
    assert [seat.is_dead for seat in run.fleet.seats].count(True) == 1
    assert sum(seat.failover.num_moved for seat in run.fleet.seats) >= 1
    assert run.rollouts.counts.get("attempts_lost", 0) == 0


def test_a_dead_engine_that_is_replaced_goes_on_with_its_requests(bench):
    answers = iter([EngineDeadError("out of memory")])

    def script(request):
        if (error := next(answers, None)) is not None:
            raise error
        return [65]

    run = bench(make_engine=lambda: ScriptedEngine(script), max_restarts=1)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    assert sorted(run.take()) == [0, 1]
    assert run.rollouts.counts.get("attempts_lost", 0) == 0


def test_without_any_engine_the_learner_hears_of_it(bench):
    run = bench(Waits, num_engines=2)
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    for index in range(2):
        run.fleet.kill(index)
    with pytest.raises(EngineDeadError, match="no engine lives any more"):
        run.take()


@pytest.mark.slow
def test_a_hung_engine_costs_its_attempts_their_deadline_and_no_more(bench):
    run = bench(num_engines=2, generate_timeout_s=0.3, plan={"max_failed_attempts": 1.0, "max_failed_fraction": 1.0})
    run.fleet.seats[0].is_hung = True
    run.rollouts.start()
    run.rollouts.begin_batch(0, 9)
    taken = run.rollouts.take(2, NEVER)
    kinds = [t.failure.kind for group in taken.dropped for t in group.trajectories]
    assert kinds
    assert set(kinds) == {FailureKind.ENGINE_TIMEOUT}
    assert all(one.group.num_valid == 2 for one in taken.finished)


@pytest.mark.slow
def test_an_engine_that_fails_one_request_fails_one_attempt(bench):
    """Whatever is random about it, a failure is no reward."""
    rng = np.random.default_rng(0)

    def script(request):
        if rng.random() < 0.2:
            raise EngineError("a bad request")
        return [65]

    run = bench(
        make_engine=lambda: ScriptedEngine(script),
        num_tasks=40,
        plan={"numbers": tuple(range(4)), "max_failed_attempts": 0.75, "max_failed_fraction": 1.0},
    )
    run.rollouts.start()
    seen: list[int] = []
    for version in range(20):
        run.rollouts.begin_batch(version, 99)
        taken = run.rollouts.take(2, NEVER)
        seen += [one.draw.serial for one in taken.finished]
        for one in taken.finished:
            assert all(t.reward == 2.0 for t in one.group.trajectories if t.is_valid)
        run.rollouts.begin_learning()
        run.fleet.publish(version + 1)
    assert len(set(seen)) == len(seen) == 40 - run.rollouts.counts.get("groups_dropped", 0)
