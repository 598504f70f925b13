"""Writes run folders as a run does: healthy by default, with what a test wants changed."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.executors.episodes.trajectory import EndReason, Trajectory, TurnEnd
from turngym.executors.store.format import to_record
from turngym.learner.doctor.folder import Run, read_run
from turngym.learner.run.folder import RunFolder

STEPS = 26
SETTINGS = {
    "actor": {"max_norm": 1.0, "lr_warmup_ratio": 0.03, "adam": {"lr": 4e-5}},
    "reward": {"clip_range": [-10.0, 10.0]},
    "rollout": {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 24},
    "train": {"num_episodes": 1},
    "algo": {"advantage": {"is_correction_level": "token"}, "kl": {"estimator": "k1", "init_coef": 0.01}},
    "vllm": {"enable_prefix_caching": True},
    "ds": {"param_dtype": "bf16"},
}

Change = float | None | Callable[[int], float | None]
MakeRun = Callable[..., Run]


def healthy_row(i: int, rng: np.random.Generator, steps: int) -> dict[str, Any]:
    """Step i + 1 of a run that learns, with the numbers of real ones."""
    done = i / (steps - 1)
    k1 = rng.normal(0.002, 0.003)
    return {
        "step": i + 1,
        "version": i + 3,
        "part": 1,
        "rollout/tokens": 1150 - 500 * done + rng.normal(0, 30),
        "rollout/turns": 1.0,
        "attempts/failed": 0,
        "attempts/retries": 0,
        "attempts/valid": 64.0,
        "attempts/lone_survivors": 0.0,
        "attempts/masked_truncated": 0.0,
        "attempts/without_signal": 8.0 * round(rng.uniform(1.6, 2.4) + 2.4 * done),
        "groups/kept": 5.0,
        "groups/without_spread": 3.0,
        "ends/terminated": 64,
        "reward/mean": 0.33 + 0.43 * done + rng.normal(0, 0.07),
        "reward/std": 0.45,
        "reward/group_std": 0.3 - 0.15 * done,
        "policy/entropy": 1.5 * 0.25**done * rng.uniform(0.8, 1.2),
        "policy/grad_norm": 0.5 * rng.uniform(0.7, 1.6),
        "policy/lr": 4e-5,
        "policy/clip_fraction": 0.01,
        "policy/approx_kl": 0.001,
        "policy/ratio_max": 1.3,
        "policy/overflows": 1.0 if i == 1 else None,
        "kl/reference": 0.05 * done,
        "value/explained_variance": 0.6 * done + 0.05,
        "mismatch/abs_diff": 0.023 * rng.uniform(0.6, 1.5),
        "mismatch/kl_k1": k1,
        "mismatch/kl_k3": 0.0015 * rng.uniform(0.4, 2.5),
        "mismatch/kl_k3/lag_0": 0.0015 * rng.uniform(0.4, 2.5),
        "mismatch/kl_k3/lag_1": 0.0016 * rng.uniform(0.4, 2.5),
        "mismatch/kl_k3/lag_2": 0.0017 * rng.uniform(0.4, 2.5),
        "mismatch/ratio_mean": 1 - k1 + 0.0015,
        "mismatch/outside_bounds": 0.0,
        "is_weight/effective_size": 0.995,
        "seconds": {"rollout": 2.0, "train": 3.0},
    }


def episode(task: int = 0, reward: float = 1.0, *, answer: str = "4", **changes: Any) -> Trajectory:
    """A finished attempt of one turn: 10 tokens of context, 6 sampled."""
    sampling = changes.pop("sampling", Sampling(24))
    num_context, num_sampled = changes.pop("num_context", 10), changes.pop("num_sampled", 6)
    builder = SequenceBuilder()
    builder.add_context(np.arange(num_context), -1)
    ids, logprobs = np.arange(num_sampled, dtype=np.int32), np.full(num_sampled, -0.5, np.float32)
    builder.add_completion(Completion(ids, logprobs, np.full(num_sampled, 2, np.int32), StopReason.STOP), sampling, 0)
    prompt = changes.pop("prompt", f"What is {task} + 2?")
    fields: dict[str, Any] = {
        "task": Task(f"sums/{task}", prompt, "4"),
        "attempt": 0,
        "sequences": (builder.build(),),
        "messages": ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer}),
        "rewards_per_turn": np.array([reward]),
        "turn_ends": (TurnEnd.STOP,),
        "end_reason": EndReason.TERMINATED,
    }
    return Trajectory(**fields | changes)


def changed(row: dict[str, Any], changes: Mapping[str, Change], i: int) -> dict[str, Any]:
    """Return the row with other values, given or as functions of the place; None is absent."""
    values = {name: value(i) if callable(value) else value for name, value in changes.items()}
    return {name: value for name, value in {**row, **values}.items() if value is not None}


def merged(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with others, by dotted name."""
    copy = yaml.safe_load(yaml.safe_dump(tree))
    for name, value in changes.items():
        *groups, last = name.split(".")
        inner = copy
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return copy


@cache
def healthy_train(steps: int) -> dict[int, list[Trajectory]]:
    return {step: [episode(step, float(j < 2 + step // 13)) for j in range(4)] for step in range(1, steps + 1, 3)}


@cache
def healthy_held_out(steps: int) -> dict[int, list[Trajectory]]:
    return {0: held_out_episodes(0.3, 40), steps: held_out_episodes(0.7, 40)}


def write_episodes(folder: Path, episodes: Mapping[int, list[Trajectory]]) -> None:
    """Write them as the store does, but without waiting for the disk."""
    folder.mkdir(parents=True)
    for step, some in episodes.items():
        lines = [json.dumps(to_record(step, each)) + "\n" for each in some]
        (folder / f"step_{step:06d}.jsonl").write_text("".join(lines))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run folder and read it: `changes` to its rows, `settings` by dotted name, episodes by step."""

    def make(
        changes: Mapping[str, Change] | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        steps: int = STEPS,
        train: Mapping[int, list[Trajectory]] | None = None,
        held_out: Mapping[int, list[Trajectory]] | None = None,
        is_complete: bool = True,
    ) -> Run:
        folder = RunFolder(tmp_path / "run", resumes=False)
        folder.write_config(yaml.safe_dump(merged(SETTINGS, settings or {})))
        rng = np.random.default_rng(0)
        for i in range(steps):
            folder.append_metrics(changed(healthy_row(i, rng, steps), changes or {}, i))
        write_episodes(folder.train_store.folder, healthy_train(steps) if train is None else train)
        write_episodes(folder.eval_store.folder, healthy_held_out(steps) if held_out is None else held_out)
        if is_complete:
            folder.write_summary({"steps": steps, "is_complete": True, "eval_rewards": {}})
        return read_run(folder.root)

    return make


def held_out_episodes(share: float, count: int = 100) -> list[Trajectory]:
    """One attempt at each of so many held-out tasks, this share of them right."""
    return [episode(1000 + i, float(i < share * count)) for i in range(count)]


@pytest.fixture
def make_episode() -> Callable[..., Trajectory]:
    return episode


@pytest.fixture
def make_held_out() -> Callable[..., list[Trajectory]]:
    return held_out_episodes
