"""From a command line written for OpenRLHF to a batch for the learner: everything between but the processes."""

import asyncio
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from turngym.agents.tokenizer import load_tokenizer
from turngym.config import TrainConfig, parse_train, read_yaml, to_yaml
from turngym.errors import ConfigError, DataError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.fleet.rollout_actor import RolloutActor
from turngym.executors.traces.options import ReplayOptions
from turngym.executors.traces.run_settings import environment
from turngym.learner.batch import assemble
from turngym.learner.run.engine_settings import rollout_config
from turngym.learner.run.from_settings import loop_settings
from turngym.learner.run.inputs import check_inputs
from turngym.learner.run.placement import Layout

pytestmark = pytest.mark.usefixtures("without_openrlhf")

FILES = Path(__file__).parent.parent.parent / "envs" / "openrlhf" / "files"
LAYOUT = Layout(num_ranks=1, num_engines=1, gpus_per_rank=0, gpus_per_engine=0, threads=1, engine_threads=1)


@pytest.fixture
def command(tiny_model, tmp_path):
    """Make the words of a run over two rows."""
    rows = [{"prompt": "1+6=", "label": "7"}, {"prompt": "1+7=", "label": "8"}]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(file: str, more: str = "") -> list[str]:
        return (
            f"--agent_func_path {FILES / file} --pretrain {tiny_model} --prompt_data {tmp_path / 'data.jsonl'} "
            f"--input_key prompt --label_key label --n_samples_per_prompt 2 --rollout_batch_size 2 "
            f"--train_batch_size 4 --max_len 256 --generate_max_len 8 --init_kl_coef 0 {more}"
        ).split()

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("file", "num_turns"), [("agent_func.py", 3), ("own_executor.py", 2)])
async def test_a_step_of_a_run(command, tiny_model, file, num_turns):
    config = parse_train(command(file, "--apply_chat_template --temperature 0.5"))
    inputs = check_inputs(config)
    prompt = "<|start|>user:1+6=<|end|><|start|>assistant:"
    assert [task.prompt for task in inputs.tasks] == [prompt, prompt.replace("6", "7")]
    made = pickle.loads(pickle.dumps(rollout_config(config, inputs, LAYOUT)))
    actor = RolloutActor(made, on_gpu=False)
    tokenizer = load_tokenizer(str(tiny_model))
    said = tokenizer.encode("is 7<|end|>", add_special_tokens=False)
    engine = ScriptedEngine(lambda request: Reply(said, np.linspace(-2, -1, len(said))))
    actor._generator = engine
    sampling = loop_settings(config, 1).sampling
    async with asyncio.timeout(60):
        groups = [await actor.run_group(task, (0, 1), sampling) for task in inputs.tasks]
    trajectories = [t for group in groups for t in group.trajectories]
    assert [t.failure for t in trajectories] == [None] * 4
    assert [t.reward for t in trajectories] == [1, 1, 0, 0]
    batch = assemble(trajectories)
    length = min(len(said), 4) if file == "own_executor.py" else len(said)
    assert batch.is_action.sum() == 4 * num_turns * length
    assert batch.token_ids[batch.is_action].tolist() == said[:length] * 4 * num_turns
    logprobs = np.linspace(-2, -1, len(said), dtype=np.float32)[:length]
    np.testing.assert_array_equal(batch.rollout_logprobs[batch.is_action], np.tile(logprobs, 4 * num_turns))
    assert set(batch.temperatures[batch.is_action]) == {0.5}
    actor._executor.env_pool.close()


@pytest.mark.slow
def test_what_a_run_keeps_finds_its_agent_again(command, tmp_path):
    """Its config.yaml, for a resumed run, and for traces that are played again."""
    config = parse_train(command("agent_func.py"))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = read_yaml(str(tmp_path / "config.yaml"), TrainConfig())
    assert again == config
    assert check_inputs(again).fingerprint == check_inputs(config).fingerprint
    found = environment({"agent": config.agent, "agent_args": {}}, ReplayOptions())
    assert type(found()).__name__ == "AgentFile"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--reward.remote_url f.py", "the agent of '.*agent_func.py' gives its own; leave one of them out"),
        ("--agent_args.speed 3", "takes no argument 'speed'"),
        ("--rollout.branch_at 0", "wants an environment that can fork"),
    ],
)
def test_what_does_not_go_with_an_agents_file(command, more, message):
    with pytest.raises(ConfigError, match=message):
        check_inputs(parse_train(command("agent_func.py", more)))


def test_a_file_that_is_not_there(command):
    with pytest.raises(ConfigError, match=r"no file '.*nowhere\.py'"):
        check_inputs(parse_train(command("nowhere.py")))


def test_chat_messages_without_a_template(command, tmp_path):
    row = {"prompt": [{"role": "user", "content": "1+6="}], "label": "7"}
    words = command("agent_func.py")
    (tmp_path / "data.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"is chat messages; give --data\.apply_chat_template"):
        check_inputs(parse_train(words))
    (task,) = check_inputs(parse_train([*words, "--data.apply_chat_template"])).tasks
    assert task.prompt == "<|start|>user:1+6=<|end|><|start|>assistant:"
