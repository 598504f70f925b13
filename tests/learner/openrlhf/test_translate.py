"""Command lines that users of OpenRLHF have: each published one, and how older options become one another."""

import re
import shlex
from pathlib import Path

import pytest

from turngym.__main__ import COMMANDS
from turngym.config import parse_train
from turngym.errors import ConfigError
from turngym.learner.models.merge_lora import _parser as merge_lora_parser
from turngym.learner.openrlhf.translate import translate_train
from turngym.learner.option_checks.pairs import check_pairs
from turngym.learner.option_checks.ranges import check_ranges

LINES = re.findall(r"^- `(\w+)(?: \(option\))?` `(.+)`$", (Path(__file__).parent / "commands.md").read_text(), re.M)
TYPE = "--algo.advantage.is_correction_type"

# By the line's number among those of train_ppo_ray, what is said of it; of the others all is honoured.
SAID = {
    0: "--critic.num_gpus_per_node is for a critic, and --algo.advantage.estimator group_norm has no use for a",
    1: r"2 options of OpenRLHF .*--ds\.enable_sleep: .*--vllm\.gpu_memory_utilization.*--vllm\.enable_sleep",
    2: r"2 options of OpenRLHF .*--ds\.enable_sleep: .*--vllm\.gpu_memory_utilization.*--vllm\.enable_sleep",
    3: "--micro_rollout_batch_size 32: one bound holds for all forward passes: leave this out",
    4: r"3 options .*--vllm\.enable_sleep: .*--logger\.wandb\.key .*metrics\.jsonl",
    7: r"--ds\.ring_attn_size 2: splits a sequence over ranks.*--data\.max_len",
    8: r"--data\.multiturn: is for sft",
    9: r"--actor\.pretrain_mode_enable: is for sft",
    21: "truncate has an upper bound only; give one number, or the mode clip",
    22: r"--ckpt\.best_metric_key eval_default_pass1: checkpoints are kept by age",
}
SAME_AS_HERE = "--algo.advantage.estimator group_norm"
TRAIN = [text for command, text in LINES if command == "train_ppo_ray"]


def test_every_line_was_found():
    text = (Path(__file__).parent / "commands.md").read_text()
    assert len(LINES) == text.count("\n- `")


def parsed(text: str):
    words = shlex.split(text.replace("{wandb_token}", "token"))
    config = parse_train(words)
    check_ranges(config)
    check_pairs(config)
    return config


@pytest.mark.parametrize("number", range(len(TRAIN)))
def test_published_lines_of_train_ppo_ray(number):
    text = TRAIN[number]
    if number not in SAID:
        assert (parsed(text) != parse_train([])) == (text != SAME_AS_HERE)
        return
    with pytest.raises(ConfigError, match=SAID[number]):
        parsed(text)


@pytest.mark.parametrize("text", [text for command, text in LINES if command == "lora_combiner"])
def test_published_lines_of_lora_combiner(text):
    assert merge_lora_parser().parse_args(shlex.split(text)).is_rm


def test_commands_that_are_to_come():
    """Their lines are parsed here as soon as there is something to parse them."""
    assert {command for command, _ in LINES} - {"train_ppo_ray", "lora_combiner"} == {
        "train_sft",
        "train_rm",
        "train_dpo",
    }
    assert not {"sft", "rm", "dpo"} & COMMANDS.keys()


def test_an_older_script_needs_another_module_and_nothing_else(capsys):
    """All three generations of names in one, and what becomes of them."""
    config = parsed(
        "--pretrain m --actor_num_gpus_per_node 1 --vllm_num_engines 1 --prompt_max_len 1000 --generate_max_len 24 "
        "--n_samples_per_prompt 4 --rollout_batch_size 8 --train.batch_size=32 --learning_rate 1e-5 --bf16 "
        "--zero_stage 3 --init_kl_coef 0.01 --use_kl_loss --kl_estimator k3 --agent_func_path agent_func.py "
        "--prompt_data d.jsonl --label_key answer --apply_chat_template --colocate_actor_ref "
        "--ref_num_nodes 1 --ref_num_gpus_per_node 1 "
        "--advantage_estimator reinforce_baseline --async_train --partial_rollout --packing_samples --flash_attn "
        "--enable_vllm_is_correction --gradient_checkpointing --eps_clip_low_high 0.2 0.3 --dynamic_filtering "
        "--dynamic_filtering_reward_range 0 1 --vllm_sync_backend nccl --logging_steps 1 --save_path out"
    )
    assert config.agent == "func:agent_func.py"
    assert (config.actor.model_name_or_path, config.actor.num_gpus_per_node, config.actor.adam.lr) == ("m", 1, 1e-5)
    assert (config.data.max_len, config.rollout.max_new_tokens) == (1024, 24)
    assert (config.rollout.n_samples_per_prompt, config.rollout.batch_size, config.train.batch_size) == (4, 8, 32)
    assert (config.ds.param_dtype, config.ds.zero_stage) == ("bf16", 3)
    assert (config.algo.kl.init_coef, config.algo.kl.use_loss, config.algo.kl.estimator) == (0.01, True, "k3")
    assert (config.data.prompt_dataset, config.data.label_key, config.data.apply_chat_template) == (
        "d.jsonl",
        "answer",
        True,
    )
    assert config.ref.num_gpus_per_node is None
    assert config.algo.advantage.estimator == "reinforce_baseline"
    assert config.algo.advantage.is_correction_type == "tis"
    assert config.train.async_enable
    assert config.train.partial_rollout_enable
    assert config.actor.gradient_checkpointing_enable
    assert config.actor.eps_clip_low_high == (0.2, 0.3)
    assert config.algo.dynamic_filtering_range == (0.0, 1.0)
    assert config.ckpt.output_dir == "out"
    said = capsys.readouterr().err
    assert "turngym: --pretrain is now --actor.model_name_or_path\n" in said
    assert "turngym: --agent_func_path is now --agent func:FILE.py\n" in said
    assert "turngym: --packing_samples is now --ds.packing_samples\n" in said
    assert "turngym: --packing_samples: sequences are always packed\n" in said
    assert (
        "--prompt_max_len 1000 and --generate_max_len 24 are now --data.max_len 1024 and --rollout.max_new_tokens 24"
        in said
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--is_correction_enable", f"{TYPE} tis"),
        ("--algo.advantage.is_correction_enable", f"{TYPE} tis"),
        (f"--algo.advantage.is_correction_enable {TYPE} icepop", f"{TYPE} icepop"),
        ("--is_correction_type seq-mask-tis --is_correction_enable", f"{TYPE} seq-mask-tis"),
        ("--enable_vllm_is_correction --use_icepop", f"{TYPE} icepop"),
        ("--is_correction_enable --is_correction_level seq", "--algo.advantage.is_correction_level seq"),
        ("--vllm_is_truncated_threshold 0.5 5.0", "--algo.advantage.is_correction_threshold 0.5 5.0"),
        ("--ref_reward_offload", "--ref.offload"),
        ("--reward_pretrain r --ref_reward_offload", "--reward.model_name_or_path r --ref.offload --reward.offload"),
        ("--prompt_max_len 9", "--data.max_len 9"),
        ("--max_len 20 --generate_max_len 9", "--data.max_len 20 --rollout.max_new_tokens 9"),
        ("--rollout.stop=--end --eval.steps -1", "--rollout.stop=--end --eval.steps -1"),
        ("--train.agent_func_path=a.py", "--agent=func:a.py"),
        ("--agent env:Guess --train.no_colocate_all", "--agent env:Guess --train.no_colocate_all"),
    ],
)  # fmt: skip
def test_words(words, found):
    assert translate_train(words.split()).words == found.split()


def test_all_that_cannot_be_honoured_is_said_at_once_and_each_once():
    with pytest.raises(ConfigError) as error:
        translate_train(
            ["--use_ms", "--use_wandb", "key", "--train.seed", "3", "--vllm.sync_backend", "gloo", "--use_ms"]
        )
    assert str(error.value).startswith("4 options of OpenRLHF cannot be honoured. --use_ms: is for ModelScope")
    assert str(error.value).count("--use_ms") == 1
    assert "--use_wandb key: is for a service" in str(error.value)
    assert "--vllm.sync_backend gloo: weights go the quickest way" in str(error.value)


def test_the_agent_is_named_once():
    with pytest.raises(ConfigError, match="--agent_func_path names the agent, and so does --agent"):
        translate_train(["--agent", "env:Guess", "--agent_func_path", "a.py"])
