"""`--agent env:ToolServer` and `env:MCP`, from their words to an episode."""

import asyncio
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from turngym.agents.tokenizer import load_tokenizer
from turngym.config import parse_train
from turngym.envs.tools.mcp_env import MCP
from turngym.envs.tools.tool_server import ToolServer
from turngym.errors import ConfigError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.fleet.rollout_actor import RolloutActor
from turngym.learner.run.engine_settings import rollout_config
from turngym.learner.run.from_settings import loop_settings
from turngym.learner.run.inputs import check_inputs
from turngym.learner.run.placement import Layout

MCP_SERVER = Path(__file__).parents[2] / "envs" / "tools" / "tiny_mcp.py"
SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add to the count.",
        "parameters": {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]},
    },
}
CALL = '<tool_call>{"name": "add", "arguments": {"amount": 17}}</tool_call>'


@pytest.fixture
def words_of(tiny_model: Path, tmp_path: Path):
    """What follows `turngym train` for questions with these tools."""
    (tmp_path / "questions.jsonl").write_text(json.dumps({"input": "0 + 17?", "answer": "17"}) + "\n")
    (tmp_path / "reward.py").write_text(
        "def reward_func(queries, prompts, labels):\n    return [float('17' in labels[0] and '17' in queries[0])]\n"
    )

    def make(*agent: str) -> list[str]:
        common = (
            f"--data.prompt_dataset {tmp_path / 'questions.jsonl'} --data.label_key answer --data.max_len 4096 "
            f"--reward.remote_url {tmp_path / 'reward.py'} --actor.model_name_or_path {tiny_model} "
            f"--ckpt.output_dir {tmp_path / 'run'} --rollout.batch_size 1 --rollout.n_samples_per_prompt 2 "
            "--train.batch_size 2"
        )
        return [*agent, *common.split()]

    return make


async def add(request) -> PlainTextResponse:
    return PlainTextResponse(str((await request.json())["amount"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MCP", "ToolServer"])
async def test_an_episode_from_the_words_of_a_command(words_of, tiny_model, tmp_path, live, name):
    if name == "MCP":
        agent = ["env:MCP", "--agent_args.command", f"{sys.executable} {MCP_SERVER} {tmp_path / 'notes'}"]
    else:
        routes = [Route("/tools", lambda request: JSONResponse([SCHEMA])), Route("/add", add, methods=["POST"])]
        agent = ["env:ToolServer", "--agent_args.url", live(Starlette(routes=routes))]
        agent += ["--agent_args.schemas_path", "/tools"]
    settings = parse_train(words_of("--agent", *agent))
    inputs = check_inputs(settings)
    assert issubclass(inputs.env.env_class, MCP if name == "MCP" else ToolServer)
    actor = RolloutActor(
        pickle.loads(pickle.dumps(rollout_config(settings, inputs, Layout(1, 1, 0, 0, 1, 1)))), on_gpu=False
    )
    tokenizer = load_tokenizer(str(tiny_model))
    said = [tokenizer.encode(f"{text}<|end|>", add_special_tokens=False) for text in (CALL, "17")]

    def answer(request) -> Reply:
        ids = said[CALL in tokenizer.decode(request.prompt_ids)]
        return Reply(ids, -np.linspace(0.1, 1.0, len(ids)))

    actor._generator = ScriptedEngine(answer, max_context=4096)
    try:
        async with asyncio.timeout(60):
            group = await actor.run_group(inputs.tasks[0], (0, 1), loop_settings(settings, 1).sampling)
    finally:
        actor._pool.close()
    for trajectory in group.trajectories:
        assert trajectory.failure is None, trajectory.failure
        assert trajectory.rewards_per_turn.tolist() == [0.0, 1.0]
        assert trajectory.extra_logs["tool_calls"] == 1.0
        sampled = np.concatenate([sequence.token_ids[sequence.is_action] for sequence in trajectory.sequences])
        assert sampled.tolist() == [token for each in said for token in each]
        results = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
        assert results == ["17"]  # a process, or a session, for each of the two


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (["env:MCP"], "command"),
        (["env:MCP", "--agent_args.comand", "x"], "Did you mean 'command'"),
        (["env:ToolServer"], "url"),
        (["env:ToolServer", "--agent_args.urll", "http://x"], "Did you mean 'url'"),
        (["env:ToolServr", "--agent_args.url", "http://x"], "Did you mean 'ToolServer'"),
    ],
)
def test_mistakes_show_before_a_run(words_of, agent, message):
    with pytest.raises(ConfigError, match=message):
        check_inputs(parse_train(words_of("--agent", *agent)))
