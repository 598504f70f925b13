"""Folders that are broken, running or no run's; what is printed, and what it costs to ask."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turngym.__main__ import main
from turngym.errors import ConfigError
from turngym.learner.doctor.diagnosis import diagnose
from turngym.learner.doctor.folder import MOST_FILES, read_run
from turngym.learner.doctor.series import Series, rank_correlation, span


def test_a_last_line_that_was_cut_off_is_told_and_left_out(make_run):
    root = make_run().root
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 27, "reward/mean": 0.')
    run = read_run(root)
    assert len(run.rows) == 26
    assert run.complaints == ("line 27 of metrics.jsonl is no whole row: the run was cut off while it wrote it",)


def test_broken_files_become_complaints(make_run):
    root = make_run().root
    (root / "config.yaml").write_text("a: [")
    (root / "summary.json").write_text("{")
    (root / "metrics.jsonl").write_text('\n[1]\n{"step": 1, "reward/mean": 0.5}\n{"step": "x"}\n{"step": 2}\n')
    (root / "trajectories" / "train" / "step_000001.jsonl").write_bytes(b'{"schema": 1}\n[]\n\xff\n{"schema": 99}\n')
    run = read_run(root)
    assert [row["step"] for row in run.rows] == [1, 2]
    assert run.settings is None
    assert run.summary is None
    assert all(stored.step > 1 for stored in run.train)
    told = "\n".join(run.complaints)
    for text in (
        "config.yaml is not YAML",
        "summary.json is no JSON",
        "line 2 of metrics",
        "line 4 of",
        "update turngym",
    ):
        assert text in told
    diagnose(run)


def test_a_row_that_was_written_twice_counts_once(make_run):
    root = make_run().root
    with (root / "metrics.jsonl").open("a") as file:
        file.write('{"step": 26, "reward/mean": 9.0}\n')
    assert read_run(root).series("reward/mean").values[-1] == 9.0
    assert len(read_run(root).rows) == 26


def test_only_some_of_very_many_files_are_read(make_run, make_episode):
    run = make_run(train={step: [make_episode(step)] for step in range(1, 101)})
    steps = sorted({stored.step for stored in run.train})
    assert (len(steps), steps[0], steps[-1]) == (MOST_FILES, 1, 100)
    assert f"of 100 steps in trajectories/train, {MOST_FILES} were read" in run.complaints


def test_held_out_rewards_come_from_the_summary_where_episodes_are_missing(make_run):
    root = make_run(held_out={}).root
    (root / "summary.json").write_text('{"eval_rewards": {"0": 0.25, "26": null, "13": 0.5}, "is_complete": true}')
    held_out = read_run(root).held_out
    assert {step: score.reward for step, score in held_out.items()} == {0: 0.25, 13: 0.5}
    assert held_out[0].error is None


def test_a_running_run_is_not_called_complete(make_run, capsys):
    root = make_run(is_complete=False).root
    assert main(["doctor", str(root)]) == 0
    out = capsys.readouterr().out
    assert "26 steps, still going, or killed" in out
    assert "there is no summary.json" in out


def test_a_folder_without_a_step(make_run, capsys):
    root = make_run(steps=0, train={}, held_out={}, is_complete=False).root
    assert main(["doctor", str(root)]) == 0
    out = capsys.readouterr().out
    assert "No step was completed" in out
    assert "There is no step to look at" in out


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_what_is_no_run_is_the_users_mistake(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert main(["doctor", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert "--ckpt.output_dir" in err
    assert err.count("\n") == 1
    with pytest.raises(ConfigError):
        read_run(tmp_path / name)


def test_people_see_findings_numbers_and_what_is_not_known(make_run, capsys):
    root = make_run({"policy/lr": 0.0, "policy/overflows": None}).root
    assert main(["doctor", str(root)]) == 0
    out = capsys.readouterr().out
    assert "PROBLEM in optimiser: The learning rate is 0" in out
    assert "To do: set --actor.adam.lr" in out
    assert "Training reward rises" in out
    assert "overflows: policy/overflows" in out
    assert max(map(len, out.splitlines())) <= 120


def test_a_healthy_run_is_told_so_with_its_numbers(make_run, capsys):
    assert main(["doctor", str(make_run().root)]) == 0
    out = capsys.readouterr().out
    assert "Nothing wrong was found." in out
    assert "gradient norm" in out
    flat = make_run({"reward/mean": lambda i: 0.3 + 0.01 * (i % 3)}).root
    main(["doctor", str(flat)])
    assert "and yet the reward does not rise" in " ".join(capsys.readouterr().out.split())


def test_json_holds_the_same(make_run, capsys):
    assert main(["doctor", "--json", str(make_run({"policy/lr": 0.0, "policy/overflows": None}).root)]) == 0
    told = json.loads(capsys.readouterr().out)
    (finding,) = told["findings"]
    assert (finding["check"], finding["stage"], finding["severity"]) == ("learning_rate", "optimiser", "problem")
    assert finding["evidence"] == ["in steps 1-26"]
    assert told["not_known"] == {"overflows": ["policy/overflows"]}
    assert told["looked_at"]["attempts that failed"] == {"early": 0.0, "late": 0.0, "steps": 26}
    assert told["steps"] == 26


@pytest.mark.slow
def test_the_doctor_needs_nothing_heavy(make_run):
    program = (
        "import sys\n"
        "from turngym.__main__ import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('HEAVY', [n for n in ('torch', 'vllm', 'ray', 'deepspeed', 'transformers') if n in sys.modules])\n"
    )
    for words in (["--help"], [str(make_run().root)]):
        command = [sys.executable, "-c", program, "doctor", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr
        assert "usage: turngym doctor" in done.stdout or "Nothing wrong" in done.stdout


def test_series_by_hand():
    series = Series(tuple(range(1, 9)), (1.0, 3.0, 9.0, 9.0, 9.0, 9.0, 5.0, 9.0))
    assert (series.early, series.late, series.change) == (2.0, 7.0, 5.0)
    assert series.error == pytest.approx(5**0.5)  # variances 2 and 8 over two values each: 1 + 4
    assert not series.rises  # 5 < 3 * 2.24
    assert series.between(3, 5).steps == (3, 4)
    assert series.where(9.0) == (3, 4, 5, 6, 8)
    assert not Series((1, 2), (0.0, 9.0)).rises  # too few to say


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [0.1, 5.0, 70.0]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3], [5, 5, 5]) == 0
    # ranks 1 2 3 4 and 1.5 1.5 3 4: covariance 4.5, squares 5 and 4.5
    assert rank_correlation([1, 2, 3, 4], [0, 0, 1, 2]) == pytest.approx(4.5 / (5 * 4.5) ** 0.5)


def test_spans_for_eyes():
    assert span([]) == "no step"
    assert span([4]) == "step 4"
    assert span([4, 5, 6]) == "steps 4-6"
    assert span([1, 3, 5, 7, 9, 11, 13, 15]) == "steps 1, 3, 5, 7, 9, 11 and 2 more"


def test_no_file_of_a_run_is_touched(make_run):
    root = make_run().root
    before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")}
    main(["doctor", str(root)])
    assert {path: path.stat().st_mtime_ns for path in Path(root).rglob("*")} == before
