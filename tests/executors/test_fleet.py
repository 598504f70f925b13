"""The fleet on a real small Ray: work comes back whole whatever dies, and every wait has an end."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray

from turngym.agents.base import Sampling
from turngym.envs.task import Task
from turngym.errors import DeadlineError, EngineDeadError, WeightSyncError, WorkerError
from turngym.executors.buffer import Group
from turngym.executors.fleet import Attempts, Fleet
from turngym.executors.ray_calls import call_all
from turngym.executors.trajectory import EndReason, Failure, FailureKind, Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

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


class FakeRolloutActor:
    """Tasks say by their prompt what becomes of them; the engine is a set of methods."""

    def __init__(self, script: Script, index: int) -> None:
        if index < 0:
            raise ValueError("this actor cannot be made")
        self._script, self._index = script, index
        self._hangs = False

    async def start(self) -> int:
        return 128

    async def health(self) -> None:
        if self._hangs:
            raise EngineDeadError("no token for 120 s while 4 requests run")

    async def run_group(self, task: Task, attempts, sampling) -> Group:
        prompt = task.prompt
        if prompt == "kills the process" and self._script.once(prompt):
            os.kill(os.getpid(), signal.SIGKILL)
        if prompt == "stops the process" and self._script.once(prompt):
            os.kill(os.getpid(), signal.SIGSTOP)
        if prompt == "hangs the engine" and self._script.once(prompt):
            self._hangs = True
        if prompt == "takes long" or self._hangs:
            await asyncio.sleep(60)
        if prompt == "is a bug":
            raise KeyError("a bug\nof two lines")
        half = prompt == "loses half" and self._script.once(prompt)
        return Group(task, tuple(_trajectory(task, n, is_lost=half and n % 2 == 1) for n in attempts))

    async def work(self, what: str) -> int:
        if what == "die" and self._index == 0 and self._script.once(what):
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "lose" and self._index == 0 and self._script.once(what):
            raise EngineDeadError("vLLM is gone")
        if what == "sleep":
            await asyncio.sleep(60)
        if what == "fail":
            raise WeightSyncError("a parameter got no weights")
        return self._index

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
def make_fleet(tmp_path):
    fleets: list[Fleet] = []
    lines: list[str] = []
    remote = ray.remote(FakeRolloutActor)

    def make(num_engines: int = 2, max_restarts: int = 3, quiet_s: float = 60.0) -> Fleet:
        fleet = Fleet(
            lambda index: remote.options(num_cpus=1, max_concurrency=100).remote(Script(tmp_path), index),
            num_engines,
            start_timeout_s=60,
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


def run(fleet: Fleet, prompts: list[str], ids: str | None = None) -> dict[int, Group]:
    tasks = [Task(id=name, prompt=prompt) for name, prompt in zip(ids or "abcdefgh", prompts, strict=False)]
    return dict(fleet.run([Attempts(task, (0, 1, 2, 3)) for task in tasks], SAMPLING))


def is_whole(group: Group) -> bool:
    return [t.attempt for t in group.trajectories] == [0, 1, 2, 3] and group.num_valid == 4


def test_what_a_dead_engine_lost_is_run_again(make_fleet):
    fleet = make_fleet()
    brought: list[int] = []
    fleet.on_restart = brought.append
    groups = run(fleet, ["well", "kills the process", "well", "well"])
    assert sorted(groups) == [0, 1, 2, 3]
    assert all(is_whole(group) for group in groups.values())
    assert fleet.num_restarts == len(brought) == 1


def test_one_task_may_come_twice_even_when_its_engine_dies(make_fleet):
    groups = run(make_fleet(num_engines=1), ["loses half", "loses half"], ids="aa")
    assert all(is_whole(group) for group in groups.values())
    assert sorted(groups) == [0, 1]


@pytest.mark.parametrize("what", ["stops the process", "hangs the engine"])
def test_what_hangs_is_found_and_replaced(make_fleet, what):
    fleet = make_fleet(quiet_s=1.0)
    groups = run(fleet, [what, "well"])
    assert all(is_whole(group) for group in groups.values())
    assert fleet.num_restarts == 1


def test_without_replacements_the_run_stops(make_fleet):
    with pytest.raises(EngineDeadError, match=r"engine \d died .*--vllm.max_restarts are used up"):
        run(make_fleet(max_restarts=0), ["kills the process"])


def test_engines_that_die_in_a_call_are_left_out_and_replaced_later(make_fleet):
    fleet = make_fleet()
    brought: list[int] = []
    fleet.on_restart = brought.append
    for how in ("die", "lose"):
        assert fleet.call([0, 1], "work", how, timeout_s=30, what="working") == {1: 1}
        assert fleet.call([0, 1], "work", how, timeout_s=30, what="working") == {
            1: 1
        }  # the dead one is not asked again
        fleet.replace_dead()
        assert fleet.call([0, 1], "work", how, timeout_s=30, what="working") == {0: 0, 1: 1}
    assert brought == [0, 0]


def test_the_living_are_heard_and_waited_for(make_fleet):
    """Slow work is no death, calls have a deadline, and errors keep their names in one line."""
    fleet = make_fleet(quiet_s=0.3)
    began = time.monotonic()
    work = [Attempts(Task(id="a", prompt="takes long"), (0,))]
    assert list(fleet.run(work, SAMPLING, should_stop=lambda: time.monotonic() - began > 3)) == []
    assert fleet.num_restarts == 0
    with pytest.raises(DeadlineError, match=r"working took longer than its deadline of 0.5 s in engine 0"):
        fleet.call([0, 1], "work", "sleep", timeout_s=0.5, what="working")
    with pytest.raises(WeightSyncError, match="no weights"):
        fleet.call([0, 1], "work", "fail", timeout_s=30, what="working")
    with pytest.raises(WorkerError, match=r"running episodes failed in engine \d: KeyError: .*a bug") as error:
        run(fleet, ["is a bug"])
    assert "\n" not in str(error.value)


def test_an_actor_that_cannot_be_made_says_why(tmp_path):
    actor = ray.remote(FakeRolloutActor).remote(Script(tmp_path), -1)
    with pytest.raises(WorkerError, match="starting failed in its process: ValueError: this actor cannot be made"):
        call_all([actor.start.remote()], 60, "starting")
