"""What cannot work is refused before a process starts or a folder is touched."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from turngym.agents.tokenizer import load_tokenizer
from turngym.config import parse_train
from turngym.errors import ConfigError, MissingPackageError, UnknownNameError
from turngym.executors.fleet.rollout_actor import RolloutActor
from turngym.learner.run.checkpoint import Checkpoint
from turngym.learner.run.engine_settings import rollout_config
from turngym.learner.run.inputs import check_inputs
from turngym.learner.run.placement import Layout
from turngym.learner.run.plan import Plan, make_plan, written_by

GAE = "--algo.advantage.estimator gae"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--reward.weights 1 2", r"--reward\.weights wants one weight"),
        ("--reward.clip_range 1 -1", r"--reward\.clip_range wants a lower"),
        ("--rollout.max_new_tokens 64 --reward.overlong_buffer_len 65", "the limit of 64 sampled tokens"),
        ("--rollout.max_episode_tokens 32 --reward.overlong_buffer_len 33", "the limit of 32 sampled tokens"),
        ("--reward.stop_properly_penalty_coef 2", r"--reward\.stop_properly_penalty_coef .* got 2"),
    ],
)
def test_rewards_that_cannot_be_shaped(words, message, tiny_model, tmp_path):
    common = f"--agent env:Guess --actor.model_name_or_path {tiny_model} --ckpt.output_dir {tmp_path / 'run'}"
    settings = parse_train(f"{common} --data.max_len 512 {words}".split())
    with pytest.raises(ConfigError, match=message):
        make_plan(settings, check_inputs(settings))
    assert not (tmp_path / "run").exists()


@pytest.fixture
def altered(tiny_model: Path, tmp_path: Path):
    """A copy of the tiny model with a head, whose configuration or vocabulary differs."""

    def alter(name: str = "altered", swap: tuple[str, str] | None = None, **changes: int) -> str:
        folder = tmp_path / name
        shutil.copytree(tiny_model, folder)
        weights = load_file(folder / "model.safetensors")
        weights["score.weight"] = torch.zeros(1, 1)  # the head of a reward model
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        if swap is not None:
            tokenizer = json.loads((folder / "tokenizer.json").read_text())
            vocabulary = tokenizer["model"]["vocab"]
            vocabulary[swap[0]], vocabulary[swap[1]] = vocabulary[swap[1]], vocabulary[swap[0]]
            (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return str(folder)

    return alter


@pytest.fixture
def plan_of(tiny_model: Path, tmp_path: Path):
    def make(words: str) -> Plan:
        common = f"--agent env:Guess --actor.model_name_or_path {tiny_model} --ckpt.output_dir {tmp_path / 'run'}"
        settings = parse_train(f"{common} --data.max_len 512 {words}".split())
        return make_plan(settings, check_inputs(settings))

    return make


@pytest.mark.slow
def test_a_critic_that_cannot_read_the_actors_tokens_is_refused(plan_of, altered):
    """It gets the actor's ids, also where it begins as a reward model, which itself may have other ones."""
    other, short = altered("other", swap=("a", "b")), altered("short", max_position_embeddings=256)
    for option in ("--critic.model_name_or_path", "--reward.model_name_or_path"):
        with pytest.raises(ConfigError, match=rf"the critic, which begins as {option} .*'a' to the actor and 'b'"):
            plan_of(f"--algo.advantage.estimator gae {option} {other}")
    with pytest.raises(ConfigError, match=r"the critic, .*made for 256 tokens"):
        plan_of(f"--algo.advantage.estimator gae --critic.model_name_or_path {short}")
    assert plan_of(f"--reward.model_name_or_path {other}").reward_reader.recode is not None


def test_a_critics_architecture_is_known(plan_of):
    assert plan_of("").critic_architecture == "none"
    plan = plan_of("--algo.advantage.estimator gae")
    assert plan.critic_architecture == plan.architecture


def test_a_model_that_is_none_is_named_with_its_own_option(plan_of, altered):
    with pytest.raises(ConfigError, match=r"^--reward\.model_name_or_path: .* holds no model"):
        plan_of(f"--reward.model_name_or_path {altered(model_type='none_such')}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--algo.advantage.estimator gae --critic.freezing_steps 3 --train.max_steps 3",
            r"--critic\.freezing_steps 3 holds the actor back for all 3 steps .*--train\.max_steps",
        ),
        ("--actor.aux_loss_coef 0.1", r"--actor\.aux_loss_coef is for mixtures of experts, and .* is a llama"),
        ("--algo.advantage.estimator on_policy_distill", r"on_policy_distill wants --teacher\.model_name_or_path"),
        ("--reward.model_name_or_path POLICY", r"has no weights score\.weight, so it is no reward model"),
        ("--ds.load_in_4bit --ds.lora.rank 4", "--ds.load_in_4bit needs bitsandbytes"),
    ],
)
def test_what_would_only_fail_in_the_ranks(plan_of, tiny_model, words, message, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # not installed
    with pytest.raises((ConfigError, MissingPackageError), match=message):
        plan_of(words.replace("POLICY", str(tiny_model)))


@pytest.mark.parametrize(
    ("words", "timeout_s"),
    [
        ("--env_pool.timeout_s 5", 5.0),
        ("--agent env:Prompt --env_pool.timeout_s 5 --reward.timeout_s 7 --reward.remote_url URL", 7.0),
        ("--agent env:Prompt --env_pool.timeout_s 9 --reward.timeout_s 7 --reward.remote_url URL", 9.0),
    ],
)
def test_deadline_of_an_environment(tiny_model, tmp_path, words, timeout_s):
    """A reward function's deadline lengthens a step's only where there is one."""
    (tmp_path / "reward.py").write_text("def reward_func(queries, prompts, labels):\n    return [1.0] * len(queries)\n")
    (tmp_path / "rows.jsonl").write_text('{"input": "1+1"}\n')
    if "URL" in words:
        words = words.replace("URL", f"{tmp_path / 'reward.py'} --data.prompt_dataset {tmp_path / 'rows.jsonl'}")
    settings = parse_train(f"--agent env:Guess --actor.model_name_or_path {tiny_model} {words}".split())
    config = rollout_config(settings, check_inputs(settings), Layout(1, 1, 0, 0, threads=1, engine_threads=1))
    assert config.limits.env_timeout_s == timeout_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("--ds.param_dtype fp32", "", r"--ds\.param_dtype fp32, and this run has bf16"),
        ("", "--train.enable_ema", r"average of the weights \(--train\.enable_ema\) none, and this run has kept"),
        ("", "--actor.optim muon", r"--actor\.optim adam, and this run has muon"),
        ("--ds.lora.rank 4", "", r"adapters \(--ds\.lora\.rank\) rank 4.*, and this run has none"),
        ("", f"{GAE}", r"critic \(--algo\.advantage\.estimator\) none, and this run has .* by adam on 2 ranks"),
        (GAE, f"{GAE} --critic.num_gpus_per_node 1", r"on 2 ranks, and this run has .* on 1 ranks"),
    ],
)
def test_a_checkpoint_of_a_run_without_what_this_one_needs_is_refused_by_its_option(plan_of, before, now, message):
    writer, reader = (written_by(plan_of(words), 2) for words in (before, now))
    checkpoint = Checkpoint(Path("step_000001"), 1, {"written_by": writer})
    checkpoint.check_written_by(written_by(plan_of(before), 2))
    with pytest.raises(ConfigError, match=message):
        checkpoint.check_written_by(reader)


def test_what_the_chat_template_takes_is_checked_and_passed_on(plan_of, tiny_model, altered):
    for words, message in (('{"mood":"glad"}', "reads no 'mood'"), ("mood=glad", "wanted a JSON object")):
        with pytest.raises(ConfigError, match=f"--rollout.chat_template_kwargs: .*{message}"):
            plan_of(f"--rollout.chat_template_kwargs {words}")
    tokenizer = load_tokenizer(str(tiny_model))
    moody = altered("moody")
    tokenizer.chat_template = "{{ mood }}" + tokenizer.chat_template
    tokenizer.save_pretrained(moody)
    plan = plan_of(f'--actor.model_name_or_path {moody} --rollout.chat_template_kwargs {{"mood":"glad"}}')
    config = rollout_config(plan.settings, plan.inputs, Layout(1, 1, 0, 0, threads=1, engine_threads=1))
    actor = RolloutActor(pickle.loads(pickle.dumps(config)), on_gpu=False)
    conversation = actor._executor.agent.begin()
    conversation.observe([{"role": "user", "content": "Hi"}])
    assert tokenizer.decode(conversation.prompt_ids()).startswith("glad<|start|>user:Hi")
    actor._pool.close()


def test_a_run_says_how_calls_are_read_and_passes_it_on(plan_of):
    plan = plan_of("--rollout.tool_parser mistral --rollout.reasoning_parser openai_gptoss")
    assert plan.tool_parser_choice == "tool calls are read by the parser 'mistral', since --rollout.tool_parser says so"
    config = rollout_config(plan.settings, plan.inputs, Layout(1, 1, 0, 0, threads=1, engine_threads=1))
    assert (config.tool_parser, config.reasoning_parser) == ("mistral", "openai_gptoss")
    guessed = plan_of("")
    assert "the parser 'json', since the chat template has no marks" in guessed.tool_parser_choice
    for option, nearest in (("tool_parser", "hermes"), ("reasoning_parser", "qwen3")):
        with pytest.raises(UnknownNameError, match=f"Did you mean '{nearest}'"):
            plan_of(f"--rollout.{option} {nearest}s")
