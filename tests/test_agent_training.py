"""`turngym train` for real on a tiny model, with users' agents and with games that the policy plays against itself."""

import json
from pathlib import Path

import numpy as np
import pytest

from turngym.executors.episodes.trajectory import Trajectory
from turngym.executors.store.store import TrajectoryStore

from .test_training import options, rows, summary, train

__all__ = ["options"]  # a fixture

pytestmark = [pytest.mark.soak, pytest.mark.heavy, pytest.mark.timeout(420)]

LANGGRAPH = """
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph

from turngym import Task


def tasks(split, seed):
    return [Task(id=f"{split}/{number}", prompt=f"Say a, {number}.") for number in range(400)]


@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b


def build(model):
    with_tools = model.bind_tools([add])

    async def ask(state):
        answer = None
        async for chunk in with_tools.astream(state["messages"]):
            answer = chunk if answer is None else answer + chunk
        return {"messages": [answer]}

    async def doubt(state):
        return {"messages": [("user", "Again.")]}

    graph = StateGraph(MessagesState)
    for name, node in (("first", ask), ("doubt", doubt), ("last", ask)):
        graph.add_node(name, node)
    for edge in ((START, "first"), ("first", "doubt"), ("doubt", "last")):
        graph.add_edge(*edge)
    return graph.compile()


def score(task, result):
    answers = [message.content for message in result["messages"] if message.type == "ai"]
    return sum(answer.count("a") for answer in answers) / 8
"""


def stored(folder: Path) -> list[Trajectory]:
    return [each.trajectory for each in TrajectoryStore(folder / "run" / "trajectories" / "train").read()]


def test_a_frameworks_agent_is_trained_ahead_of_the_learner_without_a_correction(options, tmp_path):
    """R27: what was captured of streams with tools is what its weights say of it; R44: the older, the less so."""
    pytest.importorskip("langgraph")
    pytest.importorskip("langchain_openai")
    (tmp_path / "agent.py").write_text(LANGGRAPH)
    out = train(
        options,
        f"--agent framework:langgraph --agent_args.entry {tmp_path / 'agent.py'}:build "
        f"--agent_args.score {tmp_path / 'agent.py'}:score --data.max_len 1024 --rollout.max_new_tokens 4 "
        "--train.async_enable --train.async_queue_size 2 --algo.advantage.is_correction_level off "
        "--rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --train.batch_size 16 --train.max_steps 8 "
        "--logger.trajectories_per_step -1 --ckpt.no_save_hf",
    )
    assert "tokens of older weights are not corrected for" in " ".join(out.split())
    steps, numbers = rows(tmp_path), summary(tmp_path)
    assert (numbers["steps"], numbers["failed_attempts"]) == (8, 0), out
    by_lag = [[row[name] for row in steps if (name := f"mismatch/abs_diff/lag_{lag}") in row] for lag in range(3)]
    means = [float(np.mean(each)) for each in by_lag if each]  # how far ahead rollouts get is the machine's matter
    assert max(by_lag[0]) < 1e-4
    assert len(means) >= 2, out
    assert 10 * means[0] < min(means[1:])
    trajectories = stored(tmp_path)
    assert len(trajectories) == 8 * 16
    for trajectory in trajectories:
        assert trajectory.num_turns == 2
        for branch in trajectory.sequences[1:]:  # the first answer was cut behind a mark that opens a message
            assert branch.fork_reason.startswith("the template ends an earlier answer differently: '<|start|>'")
        assert trajectory.extra_logs["history/continued"] == 1
    assert all(row["env/history/continued"] == 1 for row in steps)


def test_a_mixture_with_a_game_that_the_policy_plays_against_itself(options, tmp_path):
    """Both sides of each game are attempts, each with tokens of its own, and all are trained on."""
    pytest.importorskip("textarena")
    game = {"sides": "both", "num_rounds": 1, "communication_turns": 1}
    members = [
        {"id": "CopyText", "args": {"alphabet": "ab"}},
        {"id": "textarena/IteratedPrisonersDilemma-v0", "name": "dilemma", "args": game},
    ]
    (tmp_path / "mixture.yaml").write_text(json.dumps({"agent": "env:Mixture", "agent_args": {"envs": members}}))
    out = train(
        options,
        f"--config {tmp_path / 'mixture.yaml'} --data.max_len 1024 --rollout.max_new_tokens 6 --rollout.batch_size 4 "
        "--rollout.n_samples_per_prompt 4 --train.batch_size 16 --train.max_steps 3 --logger.trajectories_per_step -1 "
        "--actor.entropy_coef 0.01 --ckpt.no_save_hf",
    )
    steps, numbers = rows(tmp_path), summary(tmp_path)
    assert numbers["failed_attempts"] == 0, out
    assert max(row["mismatch/abs_diff"] for row in steps) < 1e-4
    assert min(row["policy/grad_norm"] for row in steps) > 0
    for member in ("CopyText", "dilemma"):
        assert [row[f"attempts/{member}/number"] for row in steps] == [8] * 3
    games: dict[tuple[str, int], list[Trajectory]] = {}
    for trajectory in stored(tmp_path):
        if trajectory.task.id.startswith("dilemma"):
            games.setdefault((trajectory.task.id, trajectory.attempt // 2), []).append(trajectory)
    assert len(games) == 3 * 2 * 2
    for sides in games.values():
        for player, trajectory in enumerate(sorted(sides, key=lambda side: side.attempt)):
            assert f"Player {player}" in trajectory.messages[0]["content"]
            assert trajectory.num_turns == 2
            assert trajectory.num_actions > 0
