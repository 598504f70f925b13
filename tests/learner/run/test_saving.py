"""A disk that is full while a checkpoint is written costs that checkpoint and nothing else."""

import pytest
import torch

from turngym.errors import CheckpointError, EngineDeadError
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.pacing import Pace
from turngym.learner.ranks.rank import is_of_disk
from turngym.learner.run import checkpoint as checkpoint_module
from turngym.learner.run.checkpoint import CheckpointFolder

from ..toy_run import Running, Toy, surviving, wanted

FILES = ("optimizer.txt", "finished.jsonl.gz", "env_states.pkl", "driver.json.part")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr(rollouts_module, "POLL_S", 0.005)


def small(folder, **options) -> Toy:
    return Toy(folder, num_tasks=12, num_passes=1, pace=Pace(4), **options)


def fill(running: Running, *steps: int, name: str = "driver.json.part") -> None:
    """Let the disk be full for one file of the checkpoints of these steps, by the device that always is."""

    def on_save(folder):
        if int(folder.name.removeprefix("step_")) in steps:
            if name == "optimizer.txt":
                with open("/dev/full", "w") as file:
                    file.write("moments")
            (folder / name).symlink_to("/dev/full")

    running.ranks.on_save = on_save


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_run_goes_on_aloud_without_a_checkpoint_that_does_not_fit_and_tries_again(tmp_path, name):
    running = Running(small(tmp_path, settings={"save_every": 1}))
    fill(running, 2, name=name)
    running.go()
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_000001", "step_000003"]
    (line,) = [line for line in running.lines if line.startswith("WARNING")]
    assert "the checkpoint of step 2 cannot be written" in line
    assert "No space left on device" in line
    assert "the newest is that of step 1" in line
    assert sorted(surviving(tmp_path)) == sorted(running.books.trained) == wanted(running.toy)


@pytest.mark.slow
@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_save_that_was_asked_for_stops_the_run_and_leaves_earlier_ones_as_they_were(tmp_path, has_earlier):
    first = Running(small(tmp_path, settings={"save_every": 1 if has_earlier else -1}))
    fill(first, 2)
    first.ranks.on_train = lambda count: first.interrupt.request() if count == 2 else None
    earlier = "the newest is that of step 1" if has_earlier else "there is none yet"
    with pytest.raises(CheckpointError, match=rf"step 2 cannot be written.*No space left on device; {earlier}"):
        first.go()
    second = Running(small(tmp_path))
    assert second.standing.state.step == (1 if has_earlier else 0)
    second.go()
    assert sorted(second.books.trained) == wanted(second.toy)


@pytest.mark.slow
def test_an_error_that_ends_the_run_is_not_hidden_by_a_full_disk(tmp_path):
    first = Running(small(tmp_path, settings={"save_every": -1}))
    fill(first, 1)
    first.ranks.on_train = lambda count: [first.fleet.kill(index) for index in range(2)]
    with pytest.raises(EngineDeadError):
        first.go()
    assert "WARNING: the checkpoint of step 1 cannot be written" in first.lines[-1]
    assert first.checkpoints.newest() == (None, [])


def test_one_that_failed_after_it_was_marked_does_not_count(tmp_path, monkeypatch):
    """The mark is there, and the disk fails when it is to be made certain."""
    folder = CheckpointFolder(tmp_path, max_num=1)
    folder.begin(1)

    def sync(path):
        if (tmp_path / "step_000001" / "driver.json").exists():
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "_sync", sync)
    with pytest.raises(OSError, match="No space left"):
        folder.finish(1, {})
    folder.abandon(1)
    assert folder.newest() == (None, [])
    assert list(tmp_path.iterdir()) == []


def test_an_old_one_that_cannot_be_removed_is_said_and_the_new_one_counts(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path, max_num=1)
    for step in (1, 2):
        folder.begin(step)
        folder.finish(step, {})

    def busy(path):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(checkpoint_module.shutil, "rmtree", busy)
    (line,) = folder.drop_oldest(2)
    assert "step_000001' cannot be removed: [Errno 16] Device or resource busy" in line
    newest, _ = folder.newest()
    assert newest is not None
    assert newest.step == 2


@pytest.mark.parametrize("num_numbers", [10, 1_000_000])
def test_what_torch_says_of_a_full_disk_is_known(num_numbers):
    with pytest.raises((OSError, RuntimeError)) as caught:
        torch.save({"weights": torch.zeros(num_numbers)}, "/dev/full")
    assert is_of_disk(caught.value)
    assert not is_of_disk(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_of_disk(ConnectionResetError())
