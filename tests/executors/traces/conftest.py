"""Small runs of `Guess`, played by the scripted engine with the tokens of a tiny model."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from turngym.__main__ import main
from turngym.agents.base import Sampling
from turngym.agents.chat import agent_for
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import Trajectory
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.store.store import TrajectoryStore

GUESS = {"low": 1, "high": 9, "max_guesses": 3, "partial": 0.5}
LIMITS = {"max_turns": 3, "max_turn_tokens": 12, "max_context": 600}
SECRET = Task(id="Guess/train/7", seed=7)  # the secret is 9, see `test_the_run_is_what_it_is_taken_for`
OTHER = Task(id="Guess/train/8", seed=8)


def play(model: Path, texts: Sequence[str], task: Task, attempt: int, **guess: object) -> Trajectory:
    """Play one episode of `Guess`; the engine's weights are 3, and 4 from the second completion on."""
    tokenizer = load_tokenizer(str(model))
    replies = []
    for turn, text in enumerate(texts):
        ids = tokenizer.encode(f"{text}<|end|>", add_special_tokens=False)
        replies.append(Reply(ids, np.linspace(-2, -0.1, len(ids)), np.full(len(ids), 3 + (turn > 0))))
    pool = EnvPool(2)
    executor = MultiTurn(agent_for(tokenizer), resolve("Guess", {**GUESS, **guess}), pool, Limits(**LIMITS))
    engine = ScriptedEngine(replies, max_context=600)
    try:
        return asyncio.run(executor.run(task, attempt, engine, Sampling(12)))
    finally:
        pool.close()


@pytest.fixture(scope="session")
def recorded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder: two steps of training and an evaluation; one attempt failed for want of a completion."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    config = {
        "agent": "env:Guess",
        "agent_args": GUESS,
        "actor": {"model_name_or_path": str(tiny_model)},
        "data": {"max_len": 600},
        "rollout": {"max_turns": 3, "max_new_tokens": 12, "of a later version": 1},
    }
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    train = TrajectoryStore(folder / "trajectories" / "train", env="env:Guess")
    first = [play(tiny_model, ["3", "I say 9"], SECRET, 0), play(tiny_model, ["1", "2", "5"], SECRET, 1)]
    train.write(1, [replace(trajectory, engine=engine) for engine, trajectory in enumerate(first)])
    train.write(2, [play(tiny_model, ["9"], SECRET, 0), play(tiny_model, ["4"], OTHER, 0)])
    held_out = TrajectoryStore(folder / "trajectories" / "eval", env="env:Guess")
    held_out.write(2, [play(tiny_model, ["\x1b[31m7", "no number", "a very long story"], SECRET, 0)])
    return folder


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """Return a copy that may be changed."""
    return shutil.copytree(recorded, tmp_path / "demo")


@pytest.fixture
def traces(capsys: pytest.CaptureFixture[str]):
    """Run `turngym traces ...` and return exit code, standard output and standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["traces", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
