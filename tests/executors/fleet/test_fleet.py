"""The fleet on a real small Ray: work comes back whole whatever dies, and every wait has an end."""

import asyncio
import os
import re
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv
from turngym.envs.task import Task
from turngym.errors import DeadlineError, EngineDeadError, WeightSyncError, WorkerError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory
from turngym.executors.episodes.tree import run_attempts
from turngym.executors.fleet import fleet as fleet_module
from turngym.executors.fleet.block_reports import report_blocking
from turngym.executors.fleet.fleet import Fleet
from turngym.executors.fleet.fleet_engine import Order
from turngym.executors.fleet.ray_calls import call_all
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.rollouts.buffer import Group
from turngym.executors.rollouts.dispatch import RolloutPlan
from turngym.executors.rollouts.draws import Draw
from turngym.executors.rollouts.pacing import Pace
from turngym.executors.rollouts.rollouts import Rollouts

from ..conftest import ByteAgent

pytestmark = [pytest.mark.slow, pytest.mark.heavy, pytest.mark.timeout(120)]

SAMPLING = Sampling(max_tokens=4)


@dataclass(frozen=True)
class Script:
    """What rollout actors do, each thing once over all of them; `marks` remembers."""

    marks: Path

    def once(self, name: str) -> bool:
        try:
            (self.marks / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Blocks(AsyncEnv):
    """Keeps the event loop that it is called on for itself, for ever."""

    async def reset(self, *, seed=None, options=None):
        threading.Event().wait()

    async def step(self, action):
        raise AssertionError("it never gets there")


class FakeRolloutActor:
    """Tasks say by their prompt what becomes of them; the engine is a set of methods."""

    def __init__(self, script: Script, index: int) -> None:
        if index < 0:
            raise ValueError("this actor cannot be made")
        self._script, self._index = script, index
        self._is_dead = False

    async def start(self) -> int:
        report_blocking()
        if (self._script.marks / "no more starts").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return 128

    async def restart(self) -> int:
        (self._script.marks / "restarted in place").touch()
        self._is_dead = False
        return 128

    async def meet(self, others: list[Any]) -> None:
        return None

    async def health(self) -> None:
        if self._is_dead:
            raise EngineDeadError("vLLM is gone")

    async def run_group(self, task: Task, attempts, sampling, branching=None, *, burst=None) -> Group:
        prompt = task.prompt
        if burst is not None:
            (self._script.marks / f"engine {self._index} {task.id} of burst {burst.number}").write_text(
                str(burst.num_attempts)
            )
        if prompt == "kills the process" and self._script.once(prompt):
            os.kill(os.getpid(), signal.SIGKILL)
        if prompt == "stops the process" and self._script.once(prompt):
            os.kill(os.getpid(), signal.SIGSTOP)
        if prompt == "loses its engine" and self._script.once(prompt):
            self._is_dead = True
        while self._is_dead:  # as an episode waits for its engine
            await asyncio.sleep(0.05)
        if prompt == "takes long":
            try:
                await asyncio.sleep(60)
            finally:
                (self._script.marks / "cancelled").touch()
        if prompt == "blocks the event loop":
            executor = MultiTurn(ByteAgent(), Blocks, EnvPool(1), Limits())
            engine = ScriptedEngine(lambda request: [65])
            return Group(task, await run_attempts(executor, task, attempts, lambda n: nullcontext(engine), sampling))
        if prompt == "is a bug":
            raise KeyError("a bug\nof two lines")
        half = prompt == "loses half" and self._script.once(prompt)
        return Group(task, tuple(_trajectory(task, n, is_lost=half and n % 2 == 1) for n in attempts))

    async def work(self, what: str) -> int:
        if what == "die" and self._index == 0 and self._script.once(what):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "lose" and self._index == 0 and self._script.once(what):
            raise EngineDeadError("vLLM is gone")
        if what == "die before the other is done":
            if self._index == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            while not (self._script.marks / "done").exists():
                await asyncio.sleep(0.05)
        if what == "sleep":
            await asyncio.sleep(60)
        if what == "fail":
            raise WeightSyncError("a parameter got no weights")
        return self._index

    async def pool_states(self, timeout_s: float) -> str:
        if self._index == 1:
            await asyncio.sleep(60)
        return f"{self._index} in {os.getpid()}"

    async def close(self) -> None:
        return None


def _trajectory(task: Task, attempt: int, *, is_lost: bool) -> Trajectory:
    failure = Failure(FailureKind.ENGINE_DEAD, "vLLM is gone", -1) if is_lost else None
    end = EndReason.FAILED if is_lost else EndReason.TERMINATED
    return Trajectory(task, attempt, (), (), np.ones(1), (), end, failure)


@pytest.fixture(scope="module", autouse=True)
def small_ray():
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=16, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def lines():
    return []


def named(results):
    return {engine.index: result for engine, result in results.items()}


@pytest.fixture
def make_fleet(tmp_path, lines, monkeypatch):
    monkeypatch.setattr(fleet_module, "ASK_EVERY_S", 0.2)
    fleets: list[Fleet] = []
    remote = ray.remote(FakeRolloutActor)

    def make(
        num_engines: int = 2, max_restarts: int = 3, quiet_s: float = 60.0, start_timeout_s: float = 60.0
    ) -> Fleet:
        fleet = Fleet(
            lambda index: remote.options(num_cpus=1, max_concurrency=100).remote(Script(tmp_path), index),
            num_engines,
            start_timeout_s=start_timeout_s,
            max_restarts=max_restarts,
            say=lines.append,
            quiet_s=quiet_s,
        )
        call_all(fleet.begin_start(), 60, "starting")
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()


def run(fleet: Fleet, prompts: list[str]) -> dict[int, list[Trajectory]]:
    """Have tasks run until all attempts are there; engines that were started anew get their weights at once."""
    tasks = [Task(id=name, prompt=prompt) for name, prompt in zip("abcdefgh", prompts, strict=False)]
    waiting = [Order(key, task, (0, 1, 2, 3), SAMPLING) for key, task in enumerate(tasks)]
    done: dict[int, list[Trajectory]] = {order.key: [] for order in waiting}
    until = time.monotonic() + 90
    while any(len(attempts) < 4 for attempts in done.values()):
        assert time.monotonic() < until, f"only {done} came"
        waiting = [order for order in waiting if not fleet.submit(order)]
        for outcome in fleet.poll(0.2):
            done[outcome.order.key] += outcome.trajectories
            if outcome.lost:
                waiting.append(replace(outcome.order, numbers=outcome.lost))
        fleet.equip(fleet.bare)
    return done


class Line:
    """Tasks by their prompts, each drawn once."""

    def __init__(self, prompts: list[str]) -> None:
        self._draws = [Draw(n, Task(id=f"task {n}", prompt=prompt)) for n, prompt in enumerate(prompts)]

    @property
    def num_left(self) -> int:
        return len(self._draws)

    def draw(self) -> Draw | None:
        return self._draws.pop(0) if self._draws else None

    def give_back(self, draw: Draw) -> None:
        self._draws.insert(0, draw)


def is_whole(attempts: list[Trajectory]) -> bool:
    return sorted(t.attempt for t in attempts) == [0, 1, 2, 3] and all(t.is_valid for t in attempts)


def test_what_a_dead_process_lost_is_run_again(make_fleet):
    fleet = make_fleet()
    done = run(fleet, ["well", "kills the process", "well", "well"])
    assert all(is_whole(attempts) for attempts in done.values())
    assert fleet.num_restarts == 1


def test_an_engine_is_started_anew_under_its_episodes(make_fleet, tmp_path):
    """The actor lives on, and with it the episodes that wait for the engine: nothing is lost or begun again."""
    fleet = make_fleet(num_engines=1)
    done = run(fleet, ["loses its engine"])
    assert is_whole(done[0])
    assert fleet.num_restarts == 1
    assert (tmp_path / "restarted in place").exists()


def test_attempts_that_gave_up_with_their_engine_are_run_again(make_fleet):
    assert is_whole(run(make_fleet(num_engines=1), ["loses half"])[0])


def test_a_process_that_hangs_is_found_and_replaced(make_fleet):
    fleet = make_fleet(quiet_s=1.0)
    done = run(fleet, ["stops the process", "well"])
    assert all(is_whole(attempts) for attempts in done.values())
    assert fleet.num_restarts == 1


def test_the_run_goes_on_with_fewer_engines_and_stops_without_any(make_fleet, lines):
    fleet = make_fleet(max_restarts=0)
    assert is_whole(run(fleet, ["kills the process"])[0])
    assert any("is not started again: --vllm.max_restarts are used up" in line for line in lines)
    with pytest.raises(EngineDeadError, match=r"no engine lives any more, and --vllm.max_restarts are used up"):
        run(make_fleet(num_engines=1, max_restarts=0, quiet_s=2.0), ["stops the process"])


def test_engines_that_die_in_a_call_are_left_out_and_have_no_weights_when_they_are_back(make_fleet):
    fleet = make_fleet()
    for how in ("die", "lose"):
        engines = fleet.started
        assert named(fleet.call(engines, "work", how, timeout_s=30, what="working")) == {1: 1}
        until = time.monotonic() + 60
        while not fleet.bare:
            assert time.monotonic() < until
            fleet.poll(0.1)
        (back,) = fleet.bare
        assert (back.index, back in engines) == (0, False)
        assert named(fleet.call(engines, "work", "well", timeout_s=30, what="working")) == {1: 1}
        assert named(fleet.call(fleet.started, "work", "well", timeout_s=30, what="working")) == {0: 0, 1: 1}
        fleet.equip([back])
        assert fleet.bare == []


def test_slow_work_is_no_death_and_can_be_cancelled(make_fleet, tmp_path):
    fleet = make_fleet(quiet_s=0.3)
    assert fleet.submit(Order(7, Task(id="a", prompt="takes long"), (0,), SAMPLING))
    for _ in range(10):
        assert fleet.poll(0.2) == []
    fleet.cancel([7])
    until = time.monotonic() + 30
    while not (tmp_path / "cancelled").exists():
        assert time.monotonic() < until
        assert fleet.poll(0.1) == []
    assert fleet.num_restarts == 0


def test_calls_have_a_deadline_and_errors_keep_their_names_in_one_line(make_fleet):
    fleet = make_fleet(max_restarts=0)
    with pytest.raises(WeightSyncError, match="no weights"):
        fleet.call(fleet.started, "work", "fail", timeout_s=30, what="working")
    with pytest.raises(DeadlineError, match=r"working took longer than its deadline of 0.5 s in engine 0, 1"):
        fleet.call(fleet.started, "work", "sleep", timeout_s=0.5, what="working")
    with pytest.raises(WorkerError, match=r"an episode of task 'a' failed in engine \d: KeyError: .*a bug") as error:
        run(make_fleet(), ["is a bug"])
    assert "\n" not in str(error.value)


def test_a_death_is_not_blamed_on_the_engine_that_was_started_in_its_place(make_fleet, tmp_path):
    """As when one dies in a pause while another drains for longer than a start takes."""
    fleet = make_fleet()
    results: list[Any] = []
    how = "die before the other is done"
    call = threading.Thread(
        target=lambda: results.append(fleet.call(fleet.started, "work", how, timeout_s=60, what="working"))
    )
    call.start()
    until = time.monotonic() + 60
    while not fleet.bare:
        assert time.monotonic() < until
        fleet.poll(0.1)
    (back,) = fleet.bare
    (tmp_path / "done").touch()
    call.join()
    assert named(results[0]) == {1: 1}
    for _ in range(5):
        fleet.poll(0.1)
    assert fleet.bare == [back]
    assert fleet.num_restarts == 1


def test_the_only_engine_that_is_late_is_started_anew(make_fleet, lines):
    fleet = make_fleet(num_engines=1, max_restarts=1)
    assert fleet.call(fleet.started, "work", "sleep", timeout_s=0.5, what="working") == {}
    until = time.monotonic() + 60
    while not fleet.bare:
        assert time.monotonic() < until
        fleet.poll(0.1)
    assert lines[0] == "engine 0 died: working took longer than its deadline of 0.5 s"
    with pytest.raises(DeadlineError, match=r"working took longer than its deadline of 0.5 s in engine 0"):
        fleet.call(fleet.started, "work", "sleep", timeout_s=0.5, what="working")


def test_one_engine_that_is_late_is_named_and_the_others_go_on(make_fleet, lines):
    """As when weights are brought to an engine that was started anew and hangs: the run has others."""
    fleet = make_fleet(max_restarts=0)
    late = [engine for engine in fleet.started if engine.index == 0]
    assert fleet.call(late, "work", "sleep", timeout_s=0.5, what="working") == {}
    assert lines == ["engine 0 died: working took longer than its deadline of 0.5 s"]
    assert is_whole(run(fleet, ["well"])[0])


def test_rollouts_over_a_fleet_end_with_a_clear_error_when_no_engine_is_left(make_fleet):
    """One process is killed and one hangs; the tasks that they had are still there to be saved."""
    fleet = make_fleet(max_restarts=0, quiet_s=1.0)
    line = Line(["well", "well", "kills the process", "stops the process"])
    rollouts = Rollouts(fleet, line, Pace(2), RolloutPlan((0, 1), SAMPLING))
    rollouts.start()
    try:
        rollouts.begin_batch(0, 9)
        taken = rollouts.take(2, lambda: False)
        assert [one.draw.serial for one in taken.finished] == [0, 1]
        rollouts.begin_learning()
        rollouts.begin_batch(1, 8)
        with pytest.raises(EngineDeadError, match=r"no engine lives any more, and --vllm.max_restarts are used up"):
            rollouts.take(2, lambda: False)
        state, _ = rollouts.state(lambda serials: serials)
        assert len(state.running) + len(state.finished) == 2
    finally:
        rollouts.close()


def test_an_environment_that_blocks_its_engine_is_named_and_fails_and_the_engine_pays_nothing(make_fleet, lines):
    """Two such tasks on one engine that may never be replaced for a fault of its own; the others are all done."""
    fleet = make_fleet(num_engines=1, max_restarts=0, quiet_s=6.0)
    prompts = ["well", "blocks the event loop", "well", "blocks the event loop", "well"]
    rollouts = Rollouts(
        fleet, Line(prompts), Pace(5), RolloutPlan((0, 1), SAMPLING, max_failed_fraction=0.9, max_leases=1)
    )
    rollouts.start()
    try:
        rollouts.begin_batch(0, 1)
        taken = rollouts.take(5, lambda: False, lambda: fleet.equip(fleet.bare))
    finally:
        rollouts.close()
    assert sorted(one.draw.serial for one in taken.finished) == [0, 2, 4]
    dropped = {group.task.id: [t.failure for t in group.trajectories] for group in taken.dropped}
    assert sorted(dropped) == ["task 1", "task 3"]
    for name, failures in dropped.items():
        assert {failure.kind for failure in failures} == {FailureKind.ENV}
        assert re.match(
            rf"Blocks.reset has blocked the event loop for \d+ s, in episode '{name}/0'", failures[0].message
        )
    deaths = [line for line in lines if "died" in line]
    assert len(deaths) == fleet.num_restarts == 2
    assert re.match(r"engine 0 died: it did not answer a health check within 6 s, since Blocks.reset has", deaths[0])


def test_a_process_that_dies_at_every_start_is_not_waited_for(make_fleet, lines, tmp_path):
    """A start may take longer than any test; its process is dead at once, each of the three times."""
    fleet = make_fleet(num_engines=1, start_timeout_s=1e6)
    (tmp_path / "no more starts").touch()
    with pytest.raises(EngineDeadError, match=r"are used up; engine 0 could not be started: its start failed"):
        run(fleet, ["kills the process"])
    assert [line.partition(":")[0] for line in lines].count("engine 0 could not be started") == 3


def test_an_actor_that_cannot_be_made_says_why(tmp_path):
    actor = ray.remote(FakeRolloutActor).remote(Script(tmp_path), -1)
    with pytest.raises(WorkerError, match="starting failed in its process: ValueError: this actor cannot be made"):
        call_all([actor.start.remote()], 60, "starting")


def test_each_engine_knows_how_much_of_a_burst_comes_to_it(make_fleet, tmp_path):
    """Three tasks with two attempts each, on two engines that have nothing to do."""
    fleet = make_fleet()
    for number in (1, 2):
        orders = [Order(key, Task(id="abc"[key], prompt="well"), (0, 1), SAMPLING) for key in range(3)]
        assert fleet.submit_burst(orders)
        assert [(order.key, engine.index) for order, engine in fleet.running] == [(0, 0), (1, 1), (2, 0)]
        until = time.monotonic() + 60
        sampled_by: dict[int, set[int | None]] = {}
        while fleet.running:
            assert time.monotonic() < until
            sampled_by |= {o.order.key: {t.engine for t in o.trajectories} for o in fleet.poll(0.1)}
        assert sampled_by == {0: {0}, 1: {1}, 2: {0}}
        said = {path.name: path.read_text() for path in tmp_path.glob(f"* of burst {number}")}
        names = {"engine 0 a": "4", "engine 1 b": "2", "engine 0 c": "4"}
        assert said == {f"{name} of burst {number}": count for name, count in names.items()}


def test_actors_are_asked_while_their_engine_starts_anew_and_a_late_one_is_not_dead(make_fleet):
    fleet = make_fleet()
    answers = fleet.ask("pool_states", 0.0, timeout_s=1.0)
    assert answers[0].startswith("0 in ")
    assert isinstance(answers[1], DeadlineError)
    assert isinstance(fleet.ask("work", "fail", timeout_s=60)[1], WeightSyncError)
    assert [engine.index for engine in fleet.started] == [0, 1]
    fleet.call(fleet.started[:1], "work", "lose", timeout_s=60, what="losing an engine")
    assert [engine.index for engine in fleet.started] == [1]
    assert fleet.ask("pool_states", 0.0, timeout_s=1.0)[0] == answers[0]  # its actor lives, and what it hosts
    while not fleet.bare:
        fleet.poll(0.1)
    fleet.call(fleet.bare, "work", "die", timeout_s=60, what="losing a process")
    assert list(fleet.ask("pool_states", 0.0, timeout_s=1.0)) == [1]
    while not fleet.bare:
        fleet.poll(0.1)
    assert fleet.ask("pool_states", 0.0, timeout_s=5.0)[0] != answers[0]
