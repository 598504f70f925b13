"""The run folder keeps an earlier run, and forgets only the steps that are taken again."""

import json
from pathlib import Path

import pytest

from turngym.errors import ConfigError, StoreError
from turngym.learner.run.folder import RunFolder


def test_an_earlier_run_is_moved_aside_unless_it_goes_on(tmp_path):
    root = tmp_path / "demo"
    first = RunFolder(root, resumes=False)
    assert first.moved_to is None
    first.write_config("a: 1\n")
    first.append_metrics({"step": 1})
    resumed = RunFolder(root, resumes=True)
    assert resumed.moved_to is None
    assert resumed.forget_steps_after(1) == [{"step": 1}]
    second = RunFolder(root, resumes=False)
    assert second.moved_to == tmp_path / "demo.previous"
    assert (tmp_path / "demo.previous" / "metrics.jsonl").exists()
    assert not (root / "metrics.jsonl").exists()


def test_steps_after_the_checkpoint_are_forgotten_with_their_trajectories(tmp_path):
    folder = RunFolder(tmp_path / "run", resumes=False)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step})
        folder.append_schedule({"step": step, "version": step})
        folder.train_store.write(step, [])
    with (folder.root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "seconds": {"rollout": 1.5}')  # cut off behind a brace
    assert folder.forget_steps_after(2) == [{"step": 1}, {"step": 2}]
    assert (folder.root / "metrics.jsonl").read_text().count("\n") == 2
    assert [json.loads(line)["version"] for line in (folder.root / "schedule.jsonl").read_text().splitlines()] == [1, 2]
    assert sorted(path.name for path in folder.train_store.folder.iterdir()) == [
        "step_000001.jsonl.gz",
        "step_000002.jsonl.gz",
    ]


def test_a_run_that_never_began_does_not_drive_out_the_one_before(tmp_path):
    root = tmp_path / "demo"
    first = RunFolder(root, resumes=False)
    first.write_config("a: 1\n")
    first.append_metrics({"step": 1})
    for _ in range(2):  # two starts that fail before the first step
        RunFolder(root, resumes=False).write_config("a: 2\n")
    assert (tmp_path / "demo.previous" / "metrics.jsonl").exists()


@pytest.mark.parametrize("resumes", [True, False])
def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path, resumes):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ConfigError, match=r"--ckpt.output_dir .* cannot be written"):
            RunFolder(path, resumes=resumes)


def test_the_folder_one_stands_in_is_not_moved_away(tmp_path, monkeypatch):
    RunFolder(tmp_path, resumes=False).write_config("a: 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="from within"):
        RunFolder(Path("."), resumes=False)


def test_numbers_that_a_full_disk_refused_are_written_later(small_disk):
    folder = RunFolder(small_disk / "run", resumes=False)
    folder.append_metrics({"step": 1})
    fill(small_disk)
    for step in (2, 3):
        with pytest.raises(StoreError, match=r"metrics.jsonl': No space left on device; free some space"):
            folder.append_metrics({"step": step, "filler": "x" * 8000})
    path = small_disk / "run" / "metrics.jsonl"
    assert path.read_text() == '{"step": 1}\n'  # no half line
    (small_disk / "ballast").unlink()
    folder.append_metrics({"step": 4})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]


def test_what_is_trained_is_kept_with_the_trajectories(tmp_path):
    folder = RunFolder(tmp_path / "run", resumes=False, agent="env:Guess")
    assert (folder.train_store.env, folder.eval_store.env) == ("env:Guess", "env:Guess")


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        assert file.write(bytes(1 << 20)) < 1 << 20  # as much as there is room for
