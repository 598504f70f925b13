"""What a run is about is checked before anything is loaded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from turngym.config import TrainConfig, parse_train
from turngym.errors import ConfigError, DataError, UnknownNameError
from turngym.learner.run.inputs import Inputs, check_inputs, count_steps


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return str(folder)


@pytest.fixture
def check(model: str):
    def run(words: str = "", *more: str) -> Inputs:
        return check_inputs(parse_train(["--actor.model_name_or_path", model, *words.split(), *more]))

    return run


def reward_file(tmp_path: Path) -> Path:
    file = tmp_path / "reward.py"
    file.write_text("def reward_func(queries, prompts, labels, **kwargs):\n    return [1.0] * len(queries)\n")
    return file


def dataset(tmp_path: Path, rows: list[dict]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_an_environment_brings_its_own_tasks(check):
    inputs = check("--agent env:Guess --agent_args.high 7 --eval.at_end --eval.max_samples 5 --data.max_samples 9")
    assert inputs.env.kwargs == {"high": 7}
    assert (len(inputs.tasks), len(inputs.eval_tasks)) == (9, 5)
    assert not {t.id for t in inputs.tasks} & {t.id for t in inputs.eval_tasks}


def test_no_evaluation_makes_no_eval_tasks(check):
    assert check("--agent env:Guess").eval_tasks == []


def test_dataset_and_reward_file_make_a_prompt_environment(check, tmp_path):
    data = dataset(tmp_path, [{"q": "1+1", "a": "2"}, {"q": "1+2", "a": "3"}])
    inputs = check(
        f"--data.prompt_dataset {data} --data.input_key q --data.label_key a --data.apply_chat_template "
        f"--reward.remote_url {reward_file(tmp_path)}"
    )
    assert inputs.env.kwargs["apply_chat_template"] is True
    assert [(t.prompt, t.label) for t in inputs.tasks] == [("1+1", "2"), ("1+2", "3")]


def test_fingerprint_tells_other_tasks(check):
    same = [check(f"--agent env:Guess --agent_args.high {high}").fingerprint for high in (7, 7, 8)]
    assert same[0] == same[1] != same[2]


def test_a_missing_column_is_named_with_those_that_exist(check, tmp_path):
    data = dataset(tmp_path, [{"question": "1+1", "answer": "2"}])
    with pytest.raises(DataError) as error:
        check(f"--data.prompt_dataset {data} --data.input_key question --data.label_key solution --agent env:Math")
    for part in ("solution", "question", "answer", "--data.label_key"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("", ConfigError, "nothing says what to train on"),
        ("--agent Guess", ConfigError, "wanted env:NAME"),
        ("--agent env:Gues", UnknownNameError, "Did you mean 'Guess'"),
        ("--agent env:Guess --agent_args.hihg 3", ConfigError, "high"),
        ("--agent env:Guess --reward.remote_url x.py", ConfigError, "gives its own"),
        ("--agent env:Guess --rollout.temperature 0", ConfigError, "would not differ"),
        # R30: the engine cannot say everywhere which tokens it kept, so the ratio would be their share.
        ("--agent env:Guess --rollout.top_p 0.9", ConfigError, "the kept share instead of 1; use 1.0"),
        ("--agent env:Guess --rollout.top_p 1.5", ConfigError, "top_p 1.5"),
        ("--agent env:Math", ConfigError, "--data.prompt_dataset"),
        ("--agent env:Guess --ckpt.max_num 0", ConfigError, "--ckpt.max_num must be at least 1"),
        ("--agent env:Guess --vllm.num_engines 0", ConfigError, "--vllm.num_engines must be at least 1"),
        ("--agent env:Guess --data.prompt_dataset ./none.jsonl", DataError, "none.jsonl"),
        ("--agent env:Guess --actor.policy_loss_type pppo", UnknownNameError, "Did you mean 'ppo'"),
        ("--agent env:Guess --actor.loss_agg_mode mean", UnknownNameError, "token-mean"),
        (
            "--agent env:Guess --algo.advantage.is_correction_mode trunc",
            UnknownNameError,
            "Did you mean 'truncate'",
        ),
        (
            "--agent env:Guess --actor.policy_loss_type cispo --actor.dual_clip 3",
            ConfigError,
            "cispo has no such bound",
        ),
        ("--agent env:Guess --actor.loss_agg_length 0", ConfigError, "loss_agg_length must be at least 1"),
        ("--agent env:Guess --algo.kl.unbiased_gradient", ConfigError, "add --algo.kl.use_loss"),
        ("--agent env:Guess --algo.kl.target 0", ConfigError, "--algo.kl.target must be positive"),
        (
            "--agent env:Guess --algo.kl.target 0.1 --algo.kl.init_coef 0",
            ConfigError,
            r"--algo\.kl\.target.*--algo\.kl\.init_coef",
        ),
        (
            "--agent env:Guess --algo.advantage.estimator reinforce --rollout.n_samples_per_prompt 1 "
            "--algo.dynamic_filtering_enable",
            ConfigError,
            r"--algo\.dynamic_filtering_enable.*--rollout\.n_samples_per_prompt",
        ),
        ("--agent env:Guess --critic.freezing_steps 3", ConfigError, "group_norm has no use for a critic"),
    ],
)
def test_mistakes(check, words, error, message):
    with pytest.raises(error, match=message):
        check(words)


@pytest.mark.slow
def test_the_environment_prompt_has_its_options_however_it_is_named(check, tmp_path):
    data = dataset(tmp_path, [{"input": "1+1"}])
    url = reward_file(tmp_path)
    for words in (f"--reward.remote_url {url}", f"--agent env:Prompt --agent_args.remote_url {url}"):
        inputs = check(f"{words} --data.prompt_dataset {data} --data.apply_chat_template")
        assert inputs.env.kwargs["apply_chat_template"] is True
        assert inputs.env.kwargs["remote_url"] == str(url)


@pytest.mark.slow
def test_an_environment_with_tools_takes_the_reward_function_however_it_is_given(check, tmp_path):
    data = dataset(tmp_path, [{"input": "1+1"}])
    url = reward_file(tmp_path)
    (tmp_path / "tools.py").write_text("def add(a: int, b: int) -> int:\n    return a + b\n")
    words = f"--agent env:ToolEnv --agent_args.tools {tmp_path / 'tools.py'}:add --data.prompt_dataset {data}"
    for given in (f"--reward.remote_url {url}", f"--agent_args.remote_url {url}"):
        assert check(f"{words} {given}").env.kwargs["remote_url"] == str(url)
    assert any("no reward of its own" in line for line in check(words).complaints)


@pytest.mark.slow
def test_a_loss_without_a_gradient_on_average_is_complained_of(check):
    k1 = "--agent env:Guess --algo.kl.use_loss"
    assert any("use k2 or k3" in complaint for complaint in check(k1).complaints)
    for words in (f"{k1} --algo.kl.estimator k2", f"{k1} --algo.kl.unbiased_gradient", "--agent env:Guess"):
        assert not any("use k2 or k3" in complaint for complaint in check(words).complaints)


def test_a_model_without_weights_is_refused(check, model):
    (Path(model) / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="has no weights"):
        check("--agent env:Guess")


def test_evaluation_of_a_dataset_needs_a_dataset(check, tmp_path):
    data = dataset(tmp_path, [{"input": "1+1"}])
    with pytest.raises(ConfigError, match=r"--eval\.dataset"):
        check(f"--data.prompt_dataset {data} --reward.remote_url {reward_file(tmp_path)} --eval.at_end")


def test_steps_cover_all_tasks_of_all_passes():
    config = TrainConfig()
    config = replace(config, rollout=replace(config.rollout, batch_size=4))
    assert count_steps(config, 10) == 3
    assert count_steps(replace(config, train=replace(config.train, num_episodes=2)), 10) == 5
    assert count_steps(replace(config, train=replace(config.train, max_steps=2)), 10) == 2


@pytest.mark.slow
def test_a_mixture_is_trained_on_by_its_members_shares(check, tmp_path):
    words = "--agent env:Mixture --eval.at_end --eval.max_samples 4 --data.max_samples 9 --agent_args.envs"
    inputs = check(words, "Guess=2,CopyText")
    assert [task.id[0] for task in inputs.tasks] == list("GCGGCGGCG")
    assert [task.id[0] for task in inputs.eval_tasks] == list("GCGG")
    file = tmp_path / "mixture.yaml"
    file.write_text("agent_args:\n  envs:\n    - {id: Guess, weight: 2}\n    - CopyText\n")
    same = check("--agent env:Mixture --data.max_samples 9 --config", str(file))
    assert [task.id for task in same.tasks] == [task.id for task in inputs.tasks]
    others = check(words, "Guess=1,CopyText"), check(words, "Guess=2,CopyText", "--train.seed", "7")
    assert len({inputs.fingerprint, *(other.fingerprint for other in others)}) == 3
    assert check(words, "Guess=2,CopyText").fingerprint == inputs.fingerprint


@pytest.mark.slow
def test_the_content_of_a_members_dataset_is_part_of_a_mixtures_fingerprint(check, tmp_path):
    prints = set()
    for label in ("1", "2"):
        file = dataset(tmp_path, [{"q": "x", "a": label}] * 3)
        envs = f'[CopyText, {{id: Math, data: {{dataset: "{file}", input_key: q, label_key: a}}}}]'
        prints.add(check("--agent env:Mixture --agent_args.envs", envs).fingerprint)
    assert len(prints) == 2


@pytest.mark.slow
def test_a_mixtures_members_may_take_their_tasks_from_the_runs_dataset(check, tmp_path):
    file = dataset(tmp_path, [{"input": "1+1?", "answer": "2"}, {"input": "1+2?", "answer": "3"}])
    words = f"--agent env:Mixture --data.prompt_dataset {file} --data.label_key answer --agent_args.envs"
    inputs = check(words, "Math,CopyText")
    assert [task.id.partition("/")[0] for task in inputs.tasks] == ["Math", "CopyText"] * 2
    with pytest.raises(ConfigError, match="prompt_dataset is for nobody"):
        check(words, "Guess,CopyText")
    with pytest.raises(ConfigError, match=r"--eval.dataset names no held-out tasks"):
        check(words, "Math,CopyText", "--eval.at_end")


def test_weights_of_a_mixture_name_its_members(check):
    words = "--agent env:Mixture --agent_args.envs Guess,CopyText --env_pool.weights"
    check(words, "Guess=2")
    with pytest.raises(ConfigError, match=r"has no member 'Gues'. Did you mean 'Guess'\? It has: Guess, CopyText"):
        check(words, "Gues=2")


def test_branches_need_a_member_of_a_mixture_that_can_fork(check):
    words = "--agent env:Mixture --rollout.branch_at 0 --rollout.max_turns 3 --agent_args.envs"
    check(words, "CodeSandbox,CopyText")
    with pytest.raises(ConfigError, match="no member of 'Mixture' has a fork of its own"):
        check(words, "Guess,CopyText")


AGENT = """
from turngym import Task

def tasks(split, seed):
    return [Task(id=f"{split} {seed} {number}", prompt="Go") for number in range(4)]

def run(task, base_url, api_key, model, patience: int = 1):
    return 1.0
"""


def agent_file(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    return file


def test_an_agent_of_the_users_own_brings_tasks_or_takes_a_dataset(check, tmp_path):
    agent = f"--agent func:{agent_file(tmp_path)} --agent_args.patience 3"
    inputs = check(f"{agent} --train.seed 5 --eval.at_end --data.max_samples 3")
    assert [task.id for task in inputs.tasks] == ["train 5 0", "train 5 1", "train 5 2"]
    assert [task.id for task in inputs.eval_tasks] == [f"eval 5 {number}" for number in range(4)]
    assert (inputs.env.kwargs, inputs.env.remote_url, inputs.env.members) == ({"patience": 3}, None, {})
    data = dataset(tmp_path, [{"input": "1+1"}])
    given = check(f"{agent} --data.prompt_dataset {data} --reward.remote_url {reward_file(tmp_path)}")
    assert [task.prompt for task in given.tasks] == ["1+1"]
    assert given.env.remote_url == str(reward_file(tmp_path))
    assert given.fingerprint != inputs.fingerprint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agent func:{file}:runs", "Did you mean 'run'"),
        ("--agent func:{file} --agent_args.patients 2", "Did you mean 'patience'"),
        ("--agent func:{folder}/none.py", "no file"),
        ("--agent framework:langraph --agent_args.entry {file}:run", "Did you mean 'langgraph'"),
        ("--agent command:no_such_program", "no program 'no_such_program'"),
        ("--agent command:true", "--data.prompt_dataset"),
        ("--agent func:{file} --reward.remote_url {folder}/none.py", "no file"),
        ("--agent func:{file} --rollout.branch_at 1", "--rollout.branch_at forks environments"),
        ("--agent func:{file} --env_pool.weights x=2", "--agent_args.max_concurrency"),
        ("--agent func:{file} --train.full_determinism_enable", "is for environments"),
        ("--agent function:{file}", "func:path/to/file.py"),
    ],
)
def test_mistakes_about_an_agent_show_at_once(check, tmp_path, words, message):
    with pytest.raises(ConfigError) as caught:
        check(words.format(file=agent_file(tmp_path), folder=tmp_path))
    assert message in str(caught.value)


def test_a_framework_that_nothing_scores_is_doubtful(check, tmp_path, monkeypatch):
    from turngym.agents.frameworks.frameworks import FRAMEWORKS

    monkeypatch.setitem(FRAMEWORKS._entries, "autogen", lambda build, task, endpoint: "said")
    file = agent_file(tmp_path)
    file.write_text(AGENT + "def build(model): ...\ndef score(task, result): ...\n")
    agent = f"--agent framework:autogen --agent_args.entry {file}:build"
    assert "--agent_args.score" in "".join(check(agent).complaints)
    assert "score" not in "".join(check(f"{agent} --agent_args.score {file}:score").complaints)
    assert "score" not in "".join(check(f"{agent} --reward.remote_url {reward_file(tmp_path)}").complaints)
