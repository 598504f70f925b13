"""Episodes of OpenRLHF's agent files that play by themselves, replayed."""

import asyncio
import sys
from pathlib import Path

import pytest
import yaml

from turngym.agents.base import Sampling
from turngym.agents.chat import agent_for
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.openrlhf.env import agent_file
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.own_agents.agent_file import make_executor
from turngym.executors.pools.env_pool import EnvPool
from turngym.executors.store.store import TrajectoryStore

OWN = Path(__file__).parents[2] / "envs" / "openrlhf" / "files" / "own_executor.py"
BEST_OF_TWO = """
from openrlhf.utils.agent import AgentExecutorBase

class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        start = hf_tokenizer.encode(prompt, add_special_tokens=False)
        outputs = [(await llm_engine.generate(start, sampling_params)).outputs[0] for _ in range(2)]
        best = max(outputs, key=lambda output: label in output.text)
        tokens = start + best.token_ids
        return {"observation_tokens": tokens, "action_ranges": [(len(start), len(tokens))], "reward": 1.0}
"""


@pytest.fixture
def recorded_by(tiny_model: Path, tmp_path: Path, monkeypatch):
    """Record one episode of a file in a run folder, and return that."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
        monkeypatch.delitem(sys.modules, name)
    tokenizer = load_tokenizer(str(tiny_model))

    def record(file: Path, *texts: str) -> Path:
        pool, limits = EnvPool(1), Limits(max_turn_tokens=8, max_context=600)
        executor = make_executor(agent_for(tokenizer), agent_file(str(file), {}), pool, limits, tokenizer)
        engine = ScriptedEngine([tokenizer.encode(text) for text in texts], max_context=600)
        trajectory = asyncio.run(executor.run(Task("t", prompt="1+6=", label="7"), 0, engine, Sampling(8)))
        pool.close()
        assert trajectory.failure is None
        config = {
            "agent": f"func:{file}",
            "actor": {"model_name_or_path": str(tiny_model)},
            "data": {"max_len": 600},
            "rollout": {"max_new_tokens": 8},
        }
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
        TrajectoryStore(tmp_path / "run" / "trajectories" / "train", env=config["agent"]).write(1, [trajectory])
        return tmp_path / "run"

    return record


def test_an_executor_of_its_own_is_called_again(traces, recorded_by, tmp_path):
    file = tmp_path / "agent_func.py"
    file.write_text(OWN.read_text())
    run = recorded_by(file, "6<|end|>", "7777")
    assert traces("replay", run) == (0, "1 of 1 episodes are equal\n", "")
    changed = tmp_path / "changed.py"
    changed.write_text(OWN.read_text().replace('("+", ".")', '("-", ".")'))
    code, out, _ = traces("replay", run, "1/t/0", "--agent", f"func:{changed}")
    assert code == 1
    assert out.splitlines() == [
        "train 1/t/0: differs first in turn 0: observation",
        "  recorded  [user] +",
        "  now       [user] -",
    ]


def test_what_was_thrown_away_cannot_come_again(traces, recorded_by, tmp_path):
    (tmp_path / "best.py").write_text(BEST_OF_TWO)
    code, out, _ = traces("replay", recorded_by(tmp_path / "best.py", "7", "6"), "1/t/0")
    assert code == 1
    assert "those that it threw away are not in the recording" in out


def test_agents_of_users_are_refused(traces, run, tmp_path):
    (tmp_path / "agent.py").write_text("def run(task, base_url, api_key): ...")
    for agent in (f"func:{tmp_path / 'agent.py'}", "command:python a.py", "framework:langgraph"):
        code, _, err = traces("replay", run, "--agent", agent)
        assert (code, "cannot be replayed" in err, err.count("\n")) == (2, True, 1)
    code, _, err = traces("replay", run, "--agent", "func:/nowhere/agent.py")
    assert (code, "/nowhere/agent.py" in err, "cannot be replayed" in err) == (2, True, False)
