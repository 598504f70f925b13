"""`turngym train` twice for real: the same bits in step, the same schedule ahead of the learner."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turngym.executors.store.store import TrajectoryStore

pytestmark = [pytest.mark.soak, pytest.mark.timeout(420)]

LETTERS = '''
import random, time
from turngym import Env

class Letters(Env):
    """One to three turns, which take their time; letters count."""

    def reset(self, *, seed=None, options=None):
        self.number, self.turn = options["task"].seed, 0
        time.sleep(random.random() * 0.05)
        return f"{self.number}: say a", {}

    def step(self, action):
        self.turn += 1
        time.sleep(random.random() * 0.1)
        return "again", sum(map(str.isalpha, action)) / 8, self.turn > self.number % 3, False, {}
'''


@pytest.fixture
def train(tiny_model: Path, tmp_path: Path):
    """Train under full determinism into a folder of this name; return it."""
    (tmp_path / "letters.py").write_text(LETTERS)

    def run(name: str, words: str) -> Path:
        command = (
            f"{sys.executable} -m turngym train --actor.model_name_or_path {tiny_model} --ckpt.output_dir "
            f"{tmp_path / name} --ds.param_dtype fp32 --data.max_len 128 --algo.kl.init_coef 0 --actor.adam.lr 3e-3 "
            "--actor.lr_scheduler constant_with_warmup --actor.lr_warmup_ratio 0 --vllm.kv_cache_gib 0.1 "
            f"--agent env:{tmp_path / 'letters.py'}:Letters --rollout.max_new_tokens 8 --rollout.max_turns 3 "
            "--rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --train.batch_size 16 --train.max_steps 5 "
            f"--train.full_determinism_enable --logger.trajectories_per_step -1 --ckpt.no_save_hf {words}"
        ).split()
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200)
        assert done.returncode == 0, done.stdout
        return tmp_path / name

    return run


def rows(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step, but for those of the clock."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not is_of_the_clock(name)} for row in found]


def is_of_the_clock(name: str) -> bool:
    return "seconds" in name or name.endswith(("_s", "per_s"))


def episodes(folder: Path, kind: str) -> list[tuple[Any, ...]]:
    """All that was stored of each attempt, to the bit, but for its seconds."""
    return [
        (
            stored.step,
            t.task.id,
            t.attempt,
            t.end_reason,
            t.rewards_per_turn.tobytes(),
            t.messages,
            [
                (s.token_ids.tobytes(), s.is_action.tobytes(), s.logprobs.tobytes(), s.versions.tobytes())
                for s in t.sequences
            ],
        )
        for stored in TrajectoryStore(folder / "trajectories" / kind).read()
        for t in [stored.trajectory]
    ]


def test_two_synchronous_runs_are_the_same_to_the_bit(train):
    words = "--actor.num_gpus_per_node 2 --vllm.num_engines 2 --eval.steps 2 --eval.max_samples 6"
    first, second = (train(name, words) for name in ("first", "second"))
    assert [row["version"] for row in rows(first)] == [1, 2, 3, 4, 5]
    assert rows(second) == rows(first)
    assert len(episodes(first, "train")) == 5 * 16
    assert episodes(second, "train") == episodes(first, "train")
    assert episodes(second, "eval") == episodes(first, "eval")
    assert (second / "schedule.jsonl").read_text() == (first / "schedule.jsonl").read_text()


def test_a_schedule_of_an_asynchronous_run_is_followed(train):
    """The same tasks in the same order, every turn at its version; the clocks of both runs are random."""
    words = "--train.async_enable --train.async_queue_size 2"
    first = train("first", words)
    recorded = (first / "schedule.jsonl").read_text()
    second = train("second", f"{words} --train.replay_schedule {first / 'schedule.jsonl'}")
    assert (second / "schedule.jsonl").read_text() == recorded
    steps = [json.loads(line) for line in recorded.splitlines()]
    assert len(steps) == 5
    assert any(group["began"] < step["version"] for step in steps for take in step["takes"] for group in take)
    assert [attempt[:3] for attempt in episodes(second, "train")] == [a[:3] for a in episodes(first, "train")]
