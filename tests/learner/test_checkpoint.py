"""A checkpoint is complete or does not count, and only a few are kept."""

import pytest

from turngym.errors import CheckpointError, ConfigError
from turngym.learner.checkpoint import Checkpoint, CheckpointFolder


def write(folder: CheckpointFolder, step: int) -> None:
    tag = folder.begin(step)
    (folder.root / tag / "weights").write_text("x")
    folder.finish(step, {"position": step * 10})


def test_the_newest_complete_one_is_found(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=3)
    assert folder.newest() == (None, [])
    write(folder, 2)
    write(folder, 10)
    newest, cut_off = folder.newest()
    assert newest is not None
    assert (newest.step, newest.state, newest.path.name, cut_off) == (10, {"position": 100}, "step_000010", [])


def test_one_cut_off_half_way_is_passed_over_and_named(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=3)
    write(folder, 2)
    folder.begin(4)
    newest, cut_off = folder.newest()
    assert newest is not None
    assert (newest.step, cut_off) == (2, ["step_000004"])


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


def test_a_broken_one_is_an_error_that_says_what_to_do(tmp_path):
    folder = CheckpointFolder(tmp_path, max_num=2)
    write(folder, 1)
    (tmp_path / "step_000001" / "driver.json").write_text("{")
    with pytest.raises(CheckpointError, match="remove"):
        folder.newest()


def test_a_run_that_cannot_read_the_shards_is_refused(tmp_path):
    checkpoint = Checkpoint(tmp_path / "step_000004", 4, {"written_by": {"learner ranks": 2, "architecture": "a"}})
    checkpoint.check_written_by({"learner ranks": 2, "architecture": "a"})
    with pytest.raises(ConfigError, match="step_000004 was written with learner ranks 2, and this run has 1"):
        checkpoint.check_written_by({"learner ranks": 1, "architecture": "a"})
