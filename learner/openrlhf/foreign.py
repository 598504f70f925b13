"""OpenRLHF's options that are none of ours: what holds here instead, and which of their values ask for just that."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Foreign:
    """An option that is not ours.

    Attributes:
        why: What holds here, and what to give instead; the user reads it after the option.
        granted: Values that ask for what holds anyway, "" for a flag without one; all others are refused.
    """

    why: str
    granted: tuple[str, ...] = ()


_LOGS = (
    "is for a service that is not written to: metrics.jsonl in --ckpt.output_dir has every number of every step; "
    "leave it out"
)
_SLEEP = (
    "frees a GPU in turns, and here engine and learner keep their shares of it: --vllm.gpu_memory_utilization is the "
    "engine's (0.4 by default); leave this out, and move what is idle by --ds.adam_offload, --ref.offload or "
    "--reward.offload"
)
_RING = (
    "splits a sequence over ranks, and here each lies whole on one: leave it out, or bound sequences by --data.max_len"
)
_DTYPES = "gradients add up in fp32"
_FAST = "the tokenizer is loaded as the model's folder says; leave it out"
_KERNELS = "sequences are packed, with exact attention by the quickest kernels that PyTorch has for the model"
_EXPERTS = "is chosen by transformers for the model; leave it out"
_HUB = "is for ModelScope, which is not asked: download the model, and name its folder in --actor.model_name_or_path"

FOREIGN: Mapping[str, Foreign] = {
    "train.colocate_critic_reward": Foreign(
        "is for ranks that critic and reward model share without the actor; give --train.colocate_all, or each "
        "its own by --critic.num_gpus_per_node and --reward.num_gpus_per_node"
    ),
    "vllm.sync_backend": Foreign(
        "weights go the quickest way that engine and learner share (CUDA IPC, NCCL, shared memory); there is nothing "
        "to choose, leave it out",
        ("nccl",),
    ),
    "vllm.sync_with_ray": Foreign("weights never go through Ray; leave it out (Ray needs no other backend here)"),
    "vllm.enable_sleep": Foreign(_SLEEP),
    "ds.enable_sleep": Foreign(_SLEEP),
    "logger.logging_steps": Foreign("every step is logged; leave it out", ("1",)),
    "ckpt.disable_ds": Foreign(
        "leaves nothing to go on from; leave it out: by default (--ckpt.save_steps -1) only an interrupted run saves"
    ),
    "ckpt.max_mem": Foreign("checkpoints are bounded by their number: give --ckpt.max_num", ("inf",)),
    "ckpt.best_metric_key": Foreign(
        "checkpoints are kept by age, not by a metric: give --ckpt.max_num and --ckpt.save_steps; metrics.jsonl and "
        "the line after each evaluation say which one is best",
        ("",),
    ),
    "ds.use_universal_ckpt": Foreign(
        "is for another number of ranks, and a checkpoint is for as many as wrote it; leave it out, or begin anew from "
        "the model in --ckpt.output_dir by --actor.model_name_or_path"
    ),
    "local_rank": Foreign(
        "is for launchers that start each rank; here Ray does, from one process: leave it out", ("-1",)
    ),
    "ds.deepcompile": Foreign(
        "compiles the learner, whose packed attention and tiled head are not made for it; leave it out"
    ),
    "ds.zpg": Foreign("shards over groups of ranks, and here parameters are sharded over all; leave it out", ("1",)),
    "ds.attn_implementation": Foreign(f"{_KERNELS}; leave it out", ("flash_attention_2",)),
    "ds.experts_implementation": Foreign(_EXPERTS),
    "ds.use_liger_kernel": Foreign(
        "is for the memory of logits, and here the model's head computes logprobs tile by tile anyway; leave it out"
    ),
    "ds.grad_accum_dtype": Foreign(f"{_DTYPES}; leave it out", ("fp32",)),
    "ds.overlap_comm": Foreign("on GPUs communication overlaps with the backward pass anyway", ("",)),
    "actor.gradient_checkpointing_reentrant": Foreign(
        "adapters and packed rows need the other kind; give --actor.gradient_checkpointing_enable alone"
    ),
    "data.disable_fast_tokenizer": Foreign(_FAST),
    "data.dataloader_num_workers": Foreign("tasks are drawn one by one, which needs no workers; leave it out", ("0",)),
    "ds.tensor_parallel_size": Foreign(
        "is for split layers, and here ZeRO-3 shards them; leave it out (engines have --vllm.tensor_parallel_size)",
        ("1",),
    ),
    "ds.packing_samples": Foreign("sequences are always packed", ("",)),
    "rollout.max_tokens_per_gpu": Foreign(
        "one bound holds for all forward passes: give --train.max_tokens_per_gpu, and leave this out"
    ),
    "rollout.micro_batch_size": Foreign(
        "one bound holds for all forward passes: leave this out, or give --train.micro_batch_size with "
        "--train.no_dynamic_batch_enable",
        ("1",),
    ),
    "ds.ring_attn_size": Foreign(_RING, ("1",)),
    "ds.ring_attn_head_stride": Foreign(_RING, ("1",)),
    "logger.wandb.key": Foreign(_LOGS),
    "logger.wandb.org": Foreign(_LOGS),
    "logger.wandb.group": Foreign(_LOGS),
    "logger.wandb.project": Foreign(_LOGS),
    "logger.wandb.run_name": Foreign(_LOGS),
    "logger.tensorboard_dir": Foreign(_LOGS),
    "use_ms": Foreign(_HUB),
    "flash_attn": Foreign(_KERNELS, ("",)),
    "actor.pretrain_mode_enable": Foreign("is for sft, which learns from given text; leave it out"),
}
"""Of `train_ppo_ray`, and what is given to it by mistake."""

FOREIGN_TO_SERVE: Mapping[str, Foreign] = {
    "ds.load_in_4bit": Foreign("is for adapters in training; leave it out, --ds.param_dtype bf16 halves the memory"),
    "ds.attn_implementation": Foreign(f"{_KERNELS}; leave it out", ("flash_attention_2",)),
    "ds.experts_implementation": Foreign(_EXPERTS),
    "data.disable_fast_tokenizer": Foreign(_FAST),
    "ds.packing_samples": Foreign("texts are always packed", ("",)),
    "use_ms": Foreign(_HUB.replace("--actor.", "--reward.")),
}
"""Of `serve_rm`."""

VALUES: Mapping[str, Foreign] = {
    "ds.zero_stage": Foreign(
        "ZeRO-3 is the only stage, also where one rank holds all; leave it out, or give 3", ("3",)
    ),
}
"""Options of ours that take fewer values than OpenRLHF's."""
