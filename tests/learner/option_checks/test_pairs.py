"""What was asked for and would not happen is refused, with both options named."""

import pytest

from turngym.config import parse_train
from turngym.errors import ConfigError
from turngym.learner.option_checks.pairs import NEEDS, check_pairs

GAE = "--algo.advantage.estimator gae"
DISTILL = "--algo.advantage.estimator on_policy_distill --teacher.model_name_or_path t"
CORRECTION = "--algo.advantage.is_correction_"

# given, the option it is at odds with, and what makes it right
PAIRS = [
    ("--critic.model_name_or_path c", "estimator group_norm has no use for a critic; gae and turn_gae have", GAE),
    ("--critic.adam.lr 1e-4", "--algo.advantage.estimator", GAE),
    ("--critic.freezing_steps 3", "--algo.advantage.estimator", GAE),
    ("--critic.value_clip 0.1", "--algo.advantage.estimator", GAE),
    ("--teacher.num_engines 2", "group_norm has no use for one; on_policy_distill has", DISTILL),
    ("--teacher.model_name_or_path t", "--algo.advantage.estimator", DISTILL),
    ("--algo.kl.estimator k3 --algo.kl.init_coef 0", "--algo.kl.init_coef 0", "--algo.kl.init_coef 0.1"),
    ("--algo.kl.target 1 --algo.kl.init_coef 0", "--algo.kl.init_coef 0", "--algo.kl.init_coef 0.1"),
    ("--ref.offload --algo.kl.init_coef 0", "--algo.kl.init_coef 0", "--algo.kl.init_coef 0.1"),
    ("--ref.offload --ds.lora.rank 4", "--ds.lora.rank", "--ds.lora.rank 0"),
    ("--ref.num_gpus_per_node 1 --ds.lora.rank 4", "--ds.lora.rank", "--ds.lora.rank 0"),
    ("--ref.num_nodes 2", "--ref.num_gpus_per_node", "--ref.num_gpus_per_node 1"),
    (f"{GAE} --critic.num_nodes 2", "--critic.num_gpus_per_node", "--critic.num_gpus_per_node 1"),
    ("--reward.num_gpus_per_node 1", "--reward.model_name_or_path", "--reward.model_name_or_path r"),
    ("--reward.num_nodes 2 --reward.model_name_or_path r", "--reward.num_gpus_per_node",
     "--reward.num_gpus_per_node 1"),
    ("--reward.offload", "--reward.model_name_or_path", "--reward.model_name_or_path r"),
    ("--reward.normalize_enable", "--reward.model_name_or_path", "--reward.model_name_or_path r"),
    ("--reward.timeout_s 5", "--reward.remote_url", "--reward.remote_url f.py"),
    ("--reward.overlong_penalty_factor 2", "--reward.overlong_buffer_len", "--reward.overlong_buffer_len 5"),
    ("--reward.stop_properly_penalty_coef 0.5 --algo.advantage.mask_truncated", "--algo.advantage.mask_truncated",
     "--algo.advantage.no_mask_truncated"),
    (f"--reward.stop_properly_penalty_coef 0.5 {DISTILL}", "on_policy_distill, which learns from no reward",
     "--teacher.model_name_or_path None --algo.advantage.estimator rloo"),
    ("--reward.overlong_buffer_len 5 --algo.advantage.estimator maxrl", "estimator maxrl",
     "--algo.advantage.estimator rloo"),
    ("--reward.stop_properly_penalty_coef -1 --algo.advantage.estimator maxrl", "estimator maxrl",
     "--reward.stop_properly_penalty_coef 0.5"),
    ("--algo.kl.horizon 5", "--algo.kl.target", "--algo.kl.target 1"),
    ("--algo.kl.unbiased_gradient", "--algo.kl.use_loss", "--algo.kl.use_loss"),
    ("--algo.advantage.no_std_norm --algo.advantage.estimator rloo", "estimator rloo",
     "--algo.advantage.estimator reinforce"),
    ("--algo.advantage.turn_group_weight 0.5", "--algo.advantage.credit", "--algo.advantage.credit turn_group"),
    (f"{CORRECTION}type tis {CORRECTION}level off", f"{CORRECTION}type", f"{CORRECTION}level token"),
    (f"{CORRECTION}type tis {CORRECTION}mode mask", f"{CORRECTION}type", f"{CORRECTION}mode truncate"),
    (f"{CORRECTION}mode mask {CORRECTION}level off", f"{CORRECTION}level off", f"{CORRECTION}level seq"),
    (f"{CORRECTION}threshold 0.5 2", f"{CORRECTION}mode truncate has an upper bound only", f"{CORRECTION}mode clip"),
    ("--algo.dynamic_filtering_enable --rollout.n_samples_per_prompt 1", "--rollout.n_samples_per_prompt",
     "--rollout.n_samples_per_prompt 2"),
    (f"--algo.dynamic_filtering_enable {DISTILL} --agent env:Prompt",
     "on_policy_distill runs without any", "--reward.remote_url f.py"),
    ("--actor.eps_clip 0.1 --actor.eps_clip_low_high 0.2 0.3", "--actor.eps_clip_low_high", "--actor.eps_clip 0.2"),
    ("--actor.eps_clip 0.1 --actor.policy_loss_type sapo", "--actor.policy_loss_type sapo",
     "--actor.policy_loss_type gspo"),
    ("--actor.sapo_temperatures 1 2", "--actor.policy_loss_type ppo", "--actor.policy_loss_type sapo"),
    ("--env_pool.num_threads 4 --agent command:a", "--agent_args.max_concurrency", "--agent env:Guess"),
    ("--train.full_determinism_enable --agent command:a", "is for environments", "--agent env:Guess"),
    ("--env_pool.num_threads 4 --env_pool.backend process", "--env_pool.num_processes", "--env_pool.backend thread"),
    ("--env_pool.num_processes 4", "--env_pool.backend process", "--env_pool.backend process"),
    ("--env_pool.max_memory_gib 4", "--env_pool.backend process", "--env_pool.backend process"),
    ("--env_pool.max_restarts 4", "--env_pool.num_workers", "--env_pool.num_workers 1"),
    ("--env_pool.resources {}", "--env_pool.num_workers", "--env_pool.num_workers 1"),
    ("--env_pool.num_cpus 2", "--env_pool.num_workers", "--env_pool.num_workers 1"),
    ("--env_pool.start_timeout_s 2", "--env_pool.num_workers", "--env_pool.num_workers 1"),
    ("--actor.loss_agg_length 5", "--actor.loss_agg_mode", "--actor.loss_agg_mode seq-mean-token-sum-norm"),
    ("--actor.muon.lr 0.1", "--actor.optim muon", "--actor.optim muon"),
    (f"{GAE} --critic.muon.lr 0.1", "--critic.optim muon", "--critic.optim muon"),
    ("--actor.min_lr_ratio 0.2 --actor.lr_scheduler linear", "--actor.lr_scheduler linear",
     "--actor.lr_scheduler polynomial"),
    ("--actor.lr_warmup_ratio 0.1 --actor.lr_scheduler constant", "--actor.lr_scheduler constant",
     "--actor.lr_scheduler constant_with_warmup"),
    (f"{GAE} --critic.min_lr_ratio 0.2 --critic.lr_scheduler linear", "--critic.lr_scheduler linear",
     "--critic.lr_scheduler polynomial"),
    (f"{GAE} --critic.lr_warmup_ratio 0.1 --critic.lr_scheduler constant", "--critic.lr_scheduler constant",
     "--critic.lr_scheduler constant_with_warmup"),
    ("--ds.lora.alpha 4", "--ds.lora.rank", "--ds.lora.rank 4"),
    ("--ds.lora.sync adapter", "--ds.lora.rank", "--ds.lora.rank 4"),
    ("--ds.lora.target_modules q_proj", "--ds.lora.rank", "--ds.lora.rank 4"),
    ("--ds.value_head_prefix v_head", "--reward.model_name_or_path", GAE),
    ("--train.max_tokens_per_gpu 99 --train.no_dynamic_batch_enable", "--train.dynamic_batch_enable",
     "--train.dynamic_batch_enable"),
    ("--train.micro_batch_size 2", "--train.dynamic_batch_enable", "--train.no_dynamic_batch_enable"),
    ("--train.ema_beta 0.5", "--train.enable_ema", "--train.enable_ema"),
    ("--train.enable_ema --ckpt.no_save_hf", "--ckpt.no_save_hf", "--ckpt.save_hf"),
    (f"{GAE} --critic.save_value_network --ckpt.no_save_hf", "--ckpt.no_save_hf", "--ckpt.save_hf"),
    ("--data.label_key a", "--data.prompt_dataset", "--data.prompt_dataset d"),
    ("--data.prompt_split a", "--data.prompt_dataset", "--data.prompt_dataset d"),
    ("--data.apply_chat_template", "--agent env:Guess", "--agent env:Prompt"),
    ("--eval.max_samples 5", "--eval.at_start", "--eval.steps 3"),
    ("--eval.at_end --eval.split a", "--eval.dataset", "--eval.dataset d"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("words", "other", "mended"), PAIRS)
def test_pairs(words, other, mended):
    with pytest.raises(ConfigError) as error:
        check_pairs(parse_train(f"--agent env:Guess {words}".split()))
    message = str(error.value)
    assert other in message
    assert message.split()[0].rstrip(":") in words
    assert "\n" not in message
    check_pairs(parse_train(f"--agent env:Guess {words} {mended}".split()))


@pytest.mark.slow
def test_every_need_has_a_pair_here():
    """A need that no pair breaks is not tested."""
    broken: set[int] = set()
    for words, _, _ in PAIRS:
        settings = parse_train(f"--agent env:Guess {words}".split())
        broken |= {index for index, need in enumerate(NEEDS) if not need.holds(settings)}
    assert broken == set(range(len(NEEDS)))


def test_arguments_of_no_environment_are_refused():
    with pytest.raises(ConfigError, match=r"--agent_args\.high is for an environment: give --agent"):
        check_pairs(parse_train(["--agent_args.high", "3", "--reward.remote_url", "f.py"]))


def test_the_defaults_go_together():
    check_pairs(parse_train([]))
