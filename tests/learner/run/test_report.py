"""The summary's numbers, worked by hand, and the picture."""

import io

import pytest
from rich.console import Console

from turngym.learner.run.report import Scores, draw_rewards, print_report, summarise

ROWS = [
    {
        "step": step,
        "reward/mean": reward,
        "rollout/tokens": 100,
        "attempts/failed": failed,
        "mismatch/abs_diff": mismatch,
        "seconds": {"rollout": 2.0, "train": 3.0},
    }
    for step, reward, failed, mismatch in ((1, 0.25, 0, 0.1), (2, 0.5, 3, 0.3))
]


def test_summary_adds_up():
    summary = summarise(ROWS, Scores({0: 0.25, 2: 0.75}), 3 << 30, {"is_complete": True})
    assert (summary["before"], summary["after"], summary["steps"]) == (0.25, 0.75, 2)
    assert summary["rewards"] == [0.25, 0.5]
    assert summary["tokens_per_s"] == 50.0
    assert summary["mismatch"] == pytest.approx(0.2)
    assert summary["failed_attempts"] == 3
    assert summary["peak_memory_gib"] == 3.0
    assert summary["seconds_per_stage"]["train"] == 6.0
    assert summary["is_complete"]


def test_what_was_not_measured_is_none_and_not_zero():
    summary = summarise([], Scores({}), 0, {})
    assert (summary["before"], summary["after"], summary["tokens_per_s"], summary["mismatch"]) == (None,) * 4


@pytest.mark.slow
def test_picture_and_table(tmp_path):
    scores = Scores({0: 0.25, 2: 0.75})
    draw_rewards(tmp_path / "reward.png", ROWS, scores)
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
    out = io.StringIO()
    print_report(Console(file=out, width=100), summarise(ROWS, scores, 0, {}), [], tmp_path)
    assert "0.250" in out.getvalue()
    assert "0.750" in out.getvalue()


def test_picture_of_an_interrupted_run_without_any_step(tmp_path):
    draw_rewards(tmp_path / "reward.png", [], Scores({}))
    assert (tmp_path / "reward.png").exists()


def test_of_a_mixture_each_members_held_out_reward_is_told():
    scores = Scores({0: 0.5, 2: 0.75}, {2: {"Math": 1.0, "Guess": 0.5}, 0: {"Math": 0.5}})
    summary = summarise(ROWS, scores, 0, {})
    assert summary["eval_rewards_by_member"] == {"0": {"Math": 0.5}, "2": {"Math": 1.0, "Guess": 0.5}}
    assert "eval_rewards_by_member" not in summarise(ROWS, Scores({0: 0.5}), 0, {})
