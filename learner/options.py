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
class ActorOptions:
    """The model that is trained."""

    model_name_or_path: str | None = None
    """A Hugging Face folder or hub name."""
    num_nodes: int = 1
    """Nodes for the learner."""
    num_gpus_per_node: int | None = None
    """Learner ranks per node; by default the GPUs found, or one rank without GPU."""
    adam: AdamOptions = field(default_factory=AdamOptions)
    """Optimiser."""
    lr_scheduler: Literal["cosine_with_min_lr", "constant_with_warmup", "linear"] = "cosine_with_min_lr"
    """Shape of the learning rate after the warm-up."""
    lr_warmup_ratio: float = 0.03
    """Share of all optimiser steps spent warming up."""
    min_lr_ratio: float = 0.1
    """Lowest learning rate as a share of the peak."""
    max_norm: float = 1.0
    """Gradients are clipped to this norm."""
    policy_loss_type: str = "ppo"
    """Policy loss."""
    loss_agg_mode: str = "token-mean"
    """How token losses become one number."""
    eps_clip: float = 0.2
    """Clip range of the ratio on both sides."""
    eps_clip_low_high: tuple[float, float] | None = None
    """Clip range below and above 1; overrides eps_clip."""
    dual_clip: float | None = None
    """Lower bound of the objective for negative advantages (arXiv:1912.09729)."""
    gradient_checkpointing_enable: bool = False
    """Recompute activations in the backward pass."""


@dataclass(frozen=True)
class AdvantageOptions:
    """From rewards to advantages, and the correction for the engine's own distribution."""

    estimator: str = "group_norm"
    """Advantage estimator."""
    no_std_norm: bool = False
    """Do not divide by the standard deviation."""
    is_correction_level: Literal["off", "token"] = "token"
    """Importance-sampling correction between the engine's policy and the learner's."""
    is_correction_mode: str = "truncate"
    """What is done outside the threshold."""
    is_correction_threshold: tuple[float, ...] = (0.0, 2.0)
    """Lower and upper bound of the weight."""


@dataclass(frozen=True)
class KlOptions:
    """Distance to the reference model."""

    init_coef: float = 0.01
    """Weight of the KL; 0 loads no reference model."""
    estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator (http://joschu.net/blog/kl-approx.html)."""
    use_loss: bool = False
    """Put the KL into the loss; otherwise into the reward of each token."""


@dataclass(frozen=True)
class AlgoOptions:
    """The algorithm."""

    advantage: AdvantageOptions = field(default_factory=AdvantageOptions)
    """Advantages."""
    kl: KlOptions = field(default_factory=KlOptions)
    """KL to the reference."""


@dataclass(frozen=True)
class DsOptions:
    """DeepSpeed and the learner's numerics."""

    zero_stage: Literal[3] = 3
    """ZeRO stage; 3 shards parameters, gradients and optimiser state over the ranks."""
    param_dtype: Literal["bf16", "fp16", "fp32"] = "bf16"
    """Dtype of the forward pass; the optimiser keeps fp32 masters."""
    timeout_s: float = 600.0
    """Deadline of one collective, and of a rank's silence."""


@dataclass(frozen=True)
class RefOptions:
    """The reference model: the actor's first weights."""

    offload: bool = False
    """Keep it in host memory between uses."""


@dataclass(frozen=True)
class TrainOptions:
    """The loop."""

    batch_size: int = 128
    """Attempts per optimiser step."""
    micro_batch_tokens: int = 4096
    """Most tokens packed into one forward pass; a longer sequence goes alone."""
    max_epochs: int = 1
    """Passes over each batch of rollouts."""
    num_episodes: int = 1
    """Passes over the tasks."""
    max_steps: int = -1
    """Stop after so many steps; -1: when the tasks are used up."""
    seed: int = 42
    """Seed of task order, initialisation and, under full determinism, sampling."""
    full_determinism_enable: bool = False
    """Seed every request by task, attempt and turn, and use deterministic kernels."""
    colocate_all: bool = False
    """Share the GPU between engine and learner; with one GPU that is always so."""
    max_failed_fraction: float = 0.5
    """Stop when more than this share of a step's attempts failed."""


@dataclass(frozen=True)
class CkptOptions:
    """What is kept on disk."""

    output_dir: str = "./ckpt"
    """Run folder: config, metrics, trajectories, pictures and the final model."""
    path: str | None = None
    """Folder of the checkpoints; by default output_dir/checkpoints."""
    save_steps: int = -1
    """Save every so many steps; an interrupted run always saves."""
    max_num: int = 3
    """Keep so many checkpoints."""
    load_enable: bool = False
    """Go on from the newest checkpoint, if there is one."""
    save_hf: bool = True
    """Write the final model as a Hugging Face folder."""


@dataclass(frozen=True)
class LoggerOptions:
    """What is logged."""

    trajectories_per_step: int = 8
    """Trajectories written to disk at each step; -1 writes all."""
