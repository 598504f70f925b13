"""A checkpoint is complete or does not count, and only a few are kept."""

import os
import shutil
from pathlib import Path

import pytest

from turngym.errors import CheckpointError, ConfigError
from turngym.learner.run import checkpoint
from turngym.learner.run.checkpoint import Checkpoint, CheckpointFolder


def write(folder: CheckpointFolder, step: int) -> None:
    tag = folder.begin(step)
    (folder.root / tag / "weights").write_text("weights")
    (folder.root / tag / "critic").mkdir()
    (folder.root / tag / "critic" / "weights").write_text("weights of the critic")
    folder.finish(step, {"position": step * 10})
    assert folder.drop_oldest(step) == []


def test_the_newest_complete_one_is_found(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=3)
    assert folder.newest() == (None, [])
    write(folder, 2)
    write(folder, 10)
    newest, passed_over = folder.newest()
    assert newest is not None
    assert (newest.step, newest.state, newest.path.name, passed_over) == (10, {"position": 100}, "step_000010", [])


def test_one_passed_over_half_way_is_passed_over_and_named(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=3)
    write(folder, 2)
    folder.begin(4)
    newest, passed_over = folder.newest()
    assert newest is not None
    assert (newest.step, passed_over) == (2, ["checkpoint step_000004 was cut off half-way and is not used"])


def test_a_half_written_one_of_the_same_step_is_begun_anew(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=3)
    (tmp_path / folder.begin(4) / "half").write_text("x")
    write(folder, 4)
    assert not (tmp_path / "step_000004" / "half").exists()


def test_only_the_newest_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=2)
    for step in (1, 2, 3):
        write(folder, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002", "step_000003"]


def test_one_that_was_half_removed_does_not_count(tmp_path, monkeypatch):
    """The run died while it dropped the oldest."""
    folder = CheckpointFolder(tmp_path, max_num=1)
    write(folder, 1)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(folder, 2)
    monkeypatch.undo()
    assert (tmp_path / "step_000001" / "weights").exists()
    shutil.rmtree(tmp_path / "step_000002")
    assert folder.newest() == (None, ["checkpoint step_000001 was cut off half-way and is not used"])


@pytest.mark.parametrize("name", ["driver.json", "weights", "critic/weights"])
@pytest.mark.parametrize("damage", ["cut off", "emptied", "removed"])
def test_one_that_is_not_as_it_was_written_is_passed_over_and_named(tmp_path, name, damage):
    folder = CheckpointFolder(tmp_path, max_num=3)
    write(folder, 1)
    write(folder, 2)
    path = tmp_path / "step_000002" / name
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if damage == "emptied" else -1])
    newest, (line,) = folder.newest()
    assert newest is not None
    assert newest.step == 1
    assert line.startswith("checkpoint step_000002 ")
    if (name, damage) != ("driver.json", "removed"):
        assert "is damaged and is not used" in line
        assert name in line


def test_damaged_ones_take_no_place_of_those_that_are_written_after(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=1)
    write(folder, 10)
    shutil.copytree(tmp_path / "step_000010", tmp_path / "step_000020")
    (tmp_path / "step_000020" / "weights").write_text("w")
    for step in (12, 14):
        write(folder, step)
        newest, passed_over = folder.newest()
        assert newest is not None
        assert (newest.step, passed_over) == (step, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000014", "step_000020"]
    write(folder, 20)  # when the run comes there again
    assert [path.name for path in tmp_path.iterdir()] == ["step_000020"]


def test_a_run_does_not_begin_anew_because_its_only_checkpoint_is_damaged(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=2)
    write(folder, 1)
    (tmp_path / "step_000001" / "weights").write_text("longer than it was")
    with pytest.raises(CheckpointError, match=r"weights has 18 bytes, and 7 were written; .* remove them to begin"):
        folder.newest()


def test_everything_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    events: list[str] = []
    paths: dict[int, Path] = {}
    true_open, true_rename = os.open, Path.rename

    def opened(path, flags, *rest, **words):
        descriptor = true_open(path, flags, *rest, **words)
        paths[descriptor] = Path(path)
        return descriptor

    def renamed(path, target):
        events.append(f"rename {path.name}")
        return true_rename(path, target)

    folder = CheckpointFolder(tmp_path, max_num=2)
    folder.begin(1)
    (tmp_path / "step_000001" / "weights").write_text("x")
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(f"sync {paths[descriptor].name}"))
    monkeypatch.setattr(Path, "rename", renamed)
    folder.finish(1, {})
    assert events == [
        "sync weights",
        "sync step_000001",
        "sync driver.json.part",
        "rename driver.json.part",
        "sync step_000001",
        f"sync {tmp_path.name}",
    ]


def test_a_run_that_cannot_read_the_shards_is_refused(tmp_path):
    written = Checkpoint(tmp_path / "step_000004", 4, {"written_by": {"learner ranks": 2, "architecture": "a"}})
    written.check_written_by({"learner ranks": 2, "architecture": "a"})
    with pytest.raises(ConfigError, match="step_000004 was written with learner ranks 2, and this run has 1"):
        written.check_written_by({"learner ranks": 1, "architecture": "a"})
