"""R46: a run that stops and goes on trains the same tasks in the same order as one that never stopped."""

import shutil

import pytest

from turngym.envs.base import Env
from turngym.envs.task import Task
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.pacing import Pace

from .toy_run import Running, Toy

# 11 tasks in 3 passes, 4 a step: 33 draws; steps 3 and 6 take the end of one pass and the beginning of another.
TASKS = [Task(id=f"steady {number}") for number in range(11)]
STEPS = [4] * 8 + [1]


class Steady(Env):
    """Two turns that always work."""

    def reset(self, *, seed=None, options=None):
        self._turn = 0
        return options["task"].id, {}

    def step(self, action):
        self._turn += 1
        return ".", float(str(action).startswith("A")), self._turn >= 2, False, {}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(rollouts_module, "POLL_S", 0.005)


def made(folder, pace, stops_after=None):
    """Make a run; its list gets the learning rate and the serials of each update."""
    running = Running(Toy(folder, tasks=TASKS, num_passes=3, env=Steady, pace=pace, settings={"save_every": 1}))
    updates = []
    train = running.ranks.train

    def noted(part, objective, lr, **words):
        before = len(running.books.trained)
        metrics = train(part, objective, lr, **words)
        updates.append((lr, running.books.trained[before:]))
        if running.ranks.num_trained == stops_after:
            running.interrupt.request()
        return metrics

    running.ranks.train = noted
    return running, updates


@pytest.mark.slow
@pytest.mark.parametrize("pace", [Pace(4), Pace(4, batches_ahead=1, max_staleness=2)])
def test_a_resumed_run_trains_what_one_that_never_stopped_trains(tmp_path, pace):
    """In order where no batch runs ahead; with one ahead, tasks come as they are finished, each once all the same."""
    straight, updates = made(tmp_path / "straight", pace)
    straight.go()
    assert [len(serials) for _, serials in updates] == STEPS
    lrs = [lr for lr, _ in updates]
    assert len(set(lrs)) == 9  # the schedule moves with every step

    stopped, first = made(tmp_path / "stopped", pace, stops_after=5)
    stopped.go()
    resumed, second = made(tmp_path / "stopped", pace)
    resumed.go()

    # As after a kill: the run goes on from an older checkpoint, and takes again what came after it.
    for name in ("step_000008", "step_000009"):
        shutil.rmtree(tmp_path / "straight" / "checkpoints" / name)
    killed, third = made(tmp_path / "straight", pace)
    killed.go()

    assert [lr for lr, _ in first + second] == [lr for lr, _ in updates[:7] + third] == lrs
    for running in (resumed, killed):
        assert sorted(running.books.trained) == list(range(33))
        assert running.books.adam[3] == 9
        if not pace.batches_ahead:
            assert running.books.trained == straight.books.trained
            assert running.books.adam == straight.books.adam
    if not pace.batches_ahead:
        assert first + second == updates[:7] + third == updates
