"""The run folder keeps an earlier run, and forgets only the steps that are taken again."""

from turngym.learner.run_folder import RunFolder


def test_an_earlier_run_is_moved_aside_unless_it_goes_on(tmp_path):
    root = tmp_path / "demo"
    first = RunFolder(root, resumes=False)
    assert first.moved_to is None
    first.write_config("a: 1\n")
    first.append_metrics({"step": 1})
    resumed = RunFolder(root, resumes=True)
    assert resumed.moved_to is None
    assert resumed.read_metrics(up_to_step=1) == [{"step": 1}]
    second = RunFolder(root, resumes=False)
    assert second.moved_to == tmp_path / "demo.previous"
    assert (tmp_path / "demo.previous" / "metrics.jsonl").exists()
    assert not (root / "metrics.jsonl").exists()


def test_steps_after_the_checkpoint_are_forgotten_with_their_trajectories(tmp_path):
    folder = RunFolder(tmp_path / "run", resumes=False)
    for step in (1, 2, 3):
        folder.append_metrics({"step": step})
        folder.train_store.write(step, [])
    with (folder.root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "cut')
    assert folder.read_metrics(up_to_step=2) == [{"step": 1}, {"step": 2}]
    assert (folder.root / "metrics.jsonl").read_text().count("\n") == 2
    assert sorted(path.name for path in folder.train_store.folder.iterdir()) == [
        "step_000001.jsonl",
        "step_000002.jsonl",
    ]
