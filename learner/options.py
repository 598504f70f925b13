"""Options of the learner."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class AdamOptions:
    """AdamW."""

    lr: float = 1e-6
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""


@dataclass(frozen=True)
class MuonOptions:
    """Muon for the weight matrices, AdamW for the rest (https://kellerjordan.github.io/posts/muon/)."""

    lr: float = 0.02
    """Peak learning rate of the matrices; the rest has adam.lr."""
    momentum: float = 0.95
    """Decay of the momentum."""
    ns_steps: int = 5
    """Newton-Schulz iterations."""
    nesterov: bool = True
    """Look ahead along the momentum."""


@dataclass(frozen=True)
class ActorOptions:
    """The model that is trained."""

    model_name_or_path: str | None = None
    """A Hugging Face folder or hub name."""
    num_nodes: int = 1
    """Nodes for the learner."""
    num_gpus_per_node: int | None = None
    """Learner ranks per node; by default the GPUs found, or one rank without GPU."""
    optim: Literal["adam", "muon"] = "adam"
    """Optimiser."""
    adam: AdamOptions = field(default_factory=AdamOptions)
    """AdamW, and what Muon leaves to it."""
    muon: MuonOptions = field(default_factory=MuonOptions)
    """Muon."""
    lr_scheduler: str = "cosine_with_min_lr"
    """Shape of the learning rate after the warm-up: a scheduler of transformers."""
    lr_warmup_ratio: float = 0.03
    """Share of all optimiser steps spent warming up."""
    min_lr_ratio: float = 0.1
    """Lowest learning rate as a share of the peak."""
    max_norm: float = 1.0
    """Gradients are clipped to this norm; 0 clips none."""
    policy_loss_type: str = "ppo"
    """Policy loss."""
    loss_agg_mode: str | None = None
    """How token losses become one number; by default token-mean, seq-mean-token-sum-norm for the estimator dr_grpo, and
    seq-mean-token-mean for the losses gspo and sapo."""
    loss_agg_length: int | None = None
    """Tokens per attempt in the denominator of seq-mean-token-sum-norm; by default the most that one may sample."""
    eps_clip: float = 0.2
    """Clip range of the ratio on both sides."""
    eps_clip_low_high: tuple[float, float] | None = None
    """Clip range below and above 1; overrides eps_clip."""
    dual_clip: float | None = None
    """Lower bound of the objective for negative advantages (arXiv:1912.09729)."""
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    """Steepness of sapo's gate for positive and for negative advantages (arXiv:2511.20347)."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus; None leaves it out, 0 only measures it."""
    aux_loss_coef: float = 0.0
    """Weight of the load-balancing loss of a mixture of experts."""
    gradient_checkpointing_enable: bool = False
    """Recompute activations in the backward pass, also those of a critic."""
    freeze_visual_encoder: bool = False
    """Train a vision-language model's language part only."""


@dataclass(frozen=True)
class CriticOptions:
    """The model that estimates values; only gae has one."""

    model_name_or_path: str | None = None
    """A Hugging Face folder or hub name; by default the reward model's, else the actor's, with a new head."""
    num_nodes: int = 1
    """Nodes for the critic's own ranks."""
    num_gpus_per_node: int | None = None
    """Ranks of its own per node; by default it shares the actor's."""
    optim: Literal["adam", "muon"] = "adam"
    """Optimiser."""
    adam: AdamOptions = field(default_factory=lambda: AdamOptions(lr=9e-6))
    """AdamW, and what Muon leaves to it."""
    muon: MuonOptions = field(default_factory=MuonOptions)
    """Muon."""
    lr_scheduler: str = "cosine_with_min_lr"
    """Shape of the learning rate after the warm-up: a scheduler of transformers."""
    lr_warmup_ratio: float = 0.03
    """Share of all optimiser steps spent warming up."""
    min_lr_ratio: float = 0.1
    """Lowest learning rate as a share of the peak."""
    max_norm: float = 1.0
    """Gradients are clipped to this norm; 0 clips none."""
    value_clip: float | None = 0.5
    """Clip range of a value around the value before the step; None clips nothing."""
    freezing_steps: int = -1
    """Steps in which only the critic learns."""
    save_value_network: bool = False
    """Write the critic as a Hugging Face folder beside the final model."""


@dataclass(frozen=True)
class AdvantageOptions:
    """From rewards to advantages, and the correction for the engine's own distribution."""

    estimator: str = "group_norm"
    """Advantage estimator."""
    gamma: float = 1.0
    """Discount of later rewards, per token or per turn as the credit has it."""
    lambd: float = 1.0
    """Trace decay of gae (arXiv:1506.02438)."""
    credit: Literal["outcome", "discounted", "turn", "turn_group"] = "outcome"
    """Which reward a turn answers for: the episode's, the same discounted by the turns to the end, its own and later
    ones, or its own against turns from the same state in sibling attempts (GiGPO, arXiv:2505.10978)."""
    turn_group_weight: float = 1.0
    """Weight of the advantage of turns beside that of episodes under turn_group."""
    no_std_norm: bool = False
    """Do not divide by the standard deviation."""
    mask_truncated: bool = False
    """Leave attempts that ended at a limit out of the loss and of the statistics (DAPO, arXiv:2503.14476)."""
    is_correction_level: Literal["off", "token", "seq", "geometric"] = "token"
    """What is weighed between the engine's policy and the learner's: tokens, sequences by the product of their
    ratios, or by its geometric mean."""
    is_correction_mode: str = "truncate"
    """Outside the threshold: leave out, clip at both ends, or clip from above."""
    is_correction_gating: Literal["ratio", "binary_kl", "tv"] = "ratio"
    """What the threshold of mask bounds."""
    is_correction_threshold: tuple[float, ...] | None = None
    """Lower and upper bound; by default 0 and 2, for an older name 0.5 and 5."""
    is_correction_type: Literal["tis", "icepop", "seq-mask-tis"] | None = None
    """An older name for a level and a mode."""


@dataclass(frozen=True)
class KlOptions:
    """Distance to the reference model."""

    init_coef: float = 0.01
    """Weight of the KL; 0 loads no reference model."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator (http://joschu.net/blog/kl-approx.html)."""
    use_loss: bool = False
    """Put the KL into the loss; otherwise into the reward of each token."""
    unbiased_gradient: bool = False
    """Weigh the KL in the loss by the policy's ratio, whose gradient is then that of the true KL (DeepSeek-V3.2)."""
    target: float | None = None
    """Adapt the coefficient so that the KL comes near this (arXiv:1909.08593); None keeps it fixed."""
    horizon: int = 10_000
    """Attempts over which the coefficient adapts."""


@dataclass(frozen=True)
class AlgoOptions:
    """The algorithm."""

    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    """Advantages."""
    kl: KlOptions = field(default_factory=KlOptions)
    """KL to the reference."""
    dynamic_filtering_enable: bool = False
    """Leave out tasks whose attempts all score alike."""
    dynamic_filtering_range: tuple[float, float] | None = None
    """Leave out also tasks whose mean score does not lie strictly between these bounds."""


@dataclass(frozen=True)
class LoraOptions:
    """Low-rank adapters in the actor (arXiv:2106.09685)."""

    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: int = 16
    """Scale of the adapters: alpha / rank."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Which layers have one."""
    dropout: float = 0.0
    """Dropout before the adapters; only 0 keeps the policy that sampled and the one that learns the same."""
    sync: Literal["merged", "adapter"] = "merged"
    """How engines get them: merged into the weights, or as adapters."""


@dataclass(frozen=True)
class DsOptions:
    """DeepSpeed and the learner's numerics."""

    zero_stage: Literal[3] = 3
    """ZeRO stage; 3 shards parameters, gradients and optimiser state over the ranks."""
    param_dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Dtype of the forward pass; the optimiser keeps fp32 masters."""
    adam_offload: bool = False
    """Keep the optimiser's state in host memory and step there."""
    lora: LoraOptions = field(default_factory=LoraOptions)
    """Adapters instead of all weights."""
    load_in_4bit: bool = False
    """Hold the frozen weights under adapters in 4 bits (QLoRA, arXiv:2305.14314)."""
    value_head_prefix: str = "score"
    """Name of the head of critics and reward models."""
    timeout_s: float = 600.0
    """Deadline of one collective, and of a rank's silence."""


@dataclass(frozen=True)
class RefOptions:
    """The reference model: the actor's first weights."""

    num_nodes: int = 1
    """Nodes for the reference's own ranks."""
    num_gpus_per_node: int | None = None
    """Ranks of its own per node; by default it shares the actor's."""
    offload: bool = False
    """Keep it in host memory between uses."""


@dataclass(frozen=True)
class TeacherOptions:
    """The model that the estimator on_policy_distill learns from, served by an engine."""

    model_name_or_path: str | None = None
    """A Hugging Face folder or hub name with the actor's vocabulary."""
    num_engines: int = 1
    """Engines that serve it."""
    gpu_memory_utilization: float = 0.3
    """Each one's share of a GPU's memory."""


@dataclass(frozen=True)
class TrainOptions:
    """The loop."""

    batch_size: int = 128
    """Attempts per optimiser step."""
    dynamic_batch_enable: bool = True
    """Fill each forward pass by tokens; otherwise it takes micro_batch_size sequences."""
    max_tokens_per_gpu: int = 4096
    """Most tokens packed into one forward pass; a longer sequence goes alone."""
    micro_batch_size: int = 1
    """Sequences in one forward pass where dynamic_batch_enable is off."""
    max_epochs: int = 1
    """Passes over each batch of rollouts."""
    num_episodes: int = 1
    """Passes over the tasks."""
    max_steps: int = -1
    """Stop after so many steps; -1: when the tasks are used up."""
    seed: int = 42
    """Seed of task order, initialisation and, under full determinism, sampling."""
    full_determinism_enable: bool = False
    """Seed every request by task, attempt and turn, use deterministic kernels and, in step, sample in waves."""
    replay_schedule: str | None = None
    """With async_enable and full_determinism_enable: the schedule.jsonl of another run, to be followed."""
    enable_ema: bool = False
    """Keep a moving average of the actor's weights, and write it beside the final model."""
    ema_beta: float = 0.992
    """Share of the average that stays at each step."""
    colocate_all: bool = False
    """Let every role share the actor's ranks, whatever its num_gpus_per_node; one GPU is shared in any case."""
    max_failed_fraction: float = 0.5
    """Stop when more than this share of a step's attempts failed."""
    async_enable: bool = False
    """Let episodes go on while the learner works; their tokens are then of older weights."""
    async_queue_size: int = 1
    """With async_enable: batches that rollouts run ahead of the learner."""
    max_staleness: int | None = None
    """With async_enable: how many versions older than the learner's weights a token may be when it is learned from;
    by default async_queue_size + 1."""
    partial_rollout_enable: bool = False
    """With async_enable: update the weights under running completions; otherwise these finish first."""
    partial_rollout_cache: Literal["recompute", "keep"] = "recompute"
    """What becomes of a running completion's keys and values at an update: computed anew under the new weights, or
    kept, which is faster and further from the policy."""
