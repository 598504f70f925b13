"""`turngym eval` on a tiny model with a real engine, and what it refuses before anything starts."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turngym.__main__ import main
from turngym.executors.store.store import TrajectoryStore


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.timeout(420)
def test_a_model_is_scored_and_every_episode_kept(tiny_model: Path, tmp_path: Path) -> None:
    """The numbers of the summary are those of the stored episodes, pass@k worked out by hand from them."""
    words = (
        f"--agent env:CopyText --agent_args.alphabet ab --actor.model_name_or_path {tiny_model} "
        f"--ds.param_dtype fp32 --data.max_len 128 --vllm.kv_cache_gib 0.1 --rollout.max_new_tokens 4 "
        f"--eval.max_samples 5 --eval.n_samples_per_prompt 3 --eval.temperature 1 --eval.pass_at 1 2 "
        f"--output_dir {tmp_path / 'scores'}"
    )
    done = subprocess.run(
        [sys.executable, "-m", "turngym", "eval", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    summary = json.loads((tmp_path / "scores" / "summary.json").read_text())
    stored = [each.trajectory for each in TrajectoryStore(tmp_path / "scores" / "trajectories" / "eval").read()]
    assert (summary["tasks"], summary["attempts"], summary["failed_attempts"]) == (5, 15, 0)
    assert len(stored) == 15
    by_task: dict[str, list[float]] = {}
    for trajectory in stored:
        by_task.setdefault(trajectory.task.id, []).append(trajectory.reward)
    assert sorted(map(len, by_task.values())) == [3] * 5
    assert summary["reward"] == pytest.approx(sum(map(sum, by_task.values())) / 15)
    solved = [sum(reward >= 0.99 for reward in task) for task in by_task.values()]
    assert summary["pass_at"]["1"] == pytest.approx(sum(solved) / 15)
    # Of 3 tries, 2 drawn: no solved one among them for 3, 1, 0, 0 of 3 pairs where 0, 1, 2, 3 are solved.
    assert summary["pass_at"]["2"] == pytest.approx(sum((0, 2 / 3, 1, 1)[count] for count in solved) / 5)
    assert (tmp_path / "scores" / "scores.png").stat().st_size > 1000
    assert "pass@2" in done.stdout
    assert "5 tasks, 15 attempts" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(420)
def test_ctrl_c_leaves_the_episodes_of_finished_tasks(tiny_model: Path, tmp_path: Path) -> None:
    words = (
        f"--agent env:CopyText --agent_args.alphabet ab --actor.model_name_or_path {tiny_model} "
        f"--ds.param_dtype fp32 --data.max_len 128 --vllm.kv_cache_gib 0.1 --rollout.max_new_tokens 16 "
        f"--eval.max_samples 20000 --eval.n_samples_per_prompt 2 --output_dir {tmp_path / 'scores'}"
    )
    command = [sys.executable, "-m", "turngym", "eval", *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    parts = tmp_path / "scores" / "trajectories" / "eval"
    until = time.monotonic() + 300
    while not list(parts.glob("step_*")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130, said
    stored = [each.trajectory for each in TrajectoryStore(parts).read()]
    assert stored
    assert f"stopped after {len(stored) // 2} of 20000 tasks, whose episodes are in" in " ".join(said.split())
    assert (tmp_path / "scores" / "config.yaml").exists()
    assert not (tmp_path / "scores" / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        # 164 problems with a sample each say nothing of pass@10, whatever all of them say together.
        ("--eval.n_samples_per_prompt 1 --eval.pass_at 1 10", "pass@10 is not defined"),
        ("--eval.pass_at 0", "--eval.pass_at must be at least 1, got 0"),
        ("--reward.model_name_or_path rm", "turngym serve-rm"),
        ("--data.max_len 4096", "4096"),
        ("--data.prompt_dataset some.jsonl", "--eval.dataset names no held-out tasks"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_starts(
    words: str, wanted: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"--agent env:CopyText --actor.model_name_or_path {tiny_model} --output_dir {tmp_path / 'no'} {words}"
    assert main(["eval", *given.split()]) == 2
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
