"""Optimisers of the learner: AdamW, AdamW in host memory, and Muon."""

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from ...errors import ConfigError
from .muon import Muon

if TYPE_CHECKING:
    from ..options import ActorOptions, CriticOptions


@dataclass(frozen=True)
class OptimizerConfig:
    """What an optimiser is made with; small and picklable.

    Attributes:
        kind: "adam", or "muon" with AdamW for what Muon leaves.
        lr, betas, eps, weight_decay: AdamW's; the rate is the peak.
        muon_lr, momentum, ns_steps, nesterov: Muon's.
        offload: Keep the state in host memory and step there; without a GPU it is there anyway.
    """

    kind: Literal["adam", "muon"] = "adam"
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    muon_lr: float = 0.02
    momentum: float = 0.95
    ns_steps: int = 5
    nesterov: bool = True
    offload: bool = False

    def __post_init__(self) -> None:
        if self.kind == "muon" and self.lr <= 0:
            raise ConfigError(f"Muon leaves embeddings and norms to AdamW, whose peak rate must be positive: {self.lr}")
        if self.kind == "muon" and self.offload:
            raise ConfigError("--ds.adam_offload is for AdamW, and the optimiser is muon; leave one of them out")


def optimizer_config(options: "ActorOptions | CriticOptions", *, offload: bool) -> OptimizerConfig:
    """Read the options of an actor or a critic."""
    adam, muon = options.adam, options.muon
    return OptimizerConfig(
        kind=options.optim,
        lr=adam.lr,
        betas=adam.betas,
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        muon_lr=muon.lr,
        momentum=muon.momentum,
        ns_steps=muon.ns_steps,
        nesterov=muon.nesterov,
        offload=offload,
    )


def make_optimizer(config: OptimizerConfig, model: torch.nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Make the optimiser of a model's trained parameters; all rates are 0, to be set at every step.

    Raises:
        ConfigError: What it needs is not there.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adam: dict[str, Any] = {"betas": config.betas, "eps": config.eps, "weight_decay": config.weight_decay}
    if is_offloaded(config, device):
        return _cpu_adam(trained, adam)
    if config.kind == "adam":
        return torch.optim.AdamW(trained, lr=0.0, fused=True, **adam)
    matrices = {id(parameter) for parameter in hidden_matrices(model)}
    own = {"momentum": config.momentum, "nesterov": config.nesterov, "num_steps": config.ns_steps}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) in matrices], "lr_share": config.muon_lr / config.lr, **own},
        {"params": [p for p in trained if id(p) not in matrices]},
    ]
    return Muon([group for group in groups if group["params"]], fused=True, **adam)


def is_offloaded(config: OptimizerConfig, device: torch.device) -> bool:
    """Whether the state lies elsewhere than the model."""
    return config.offload and device.type != "cpu"


def rate_shares(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return each parameter group's learning rate as a share of AdamW's."""
    return [group.get("lr_share", 1.0) for group in optimizer.param_groups]


def hidden_matrices(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the weight matrices inside the repeated layers: neither embeddings nor heads, norms or biases.

    Experts kept as one tensor of three dimensions count as a batch of matrices.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    return [
        parameter
        for name, parameter in model.named_parameters()
        if any(part.isdigit() for part in name.split("."))  # a place in a list of layers
        and len(getattr(parameter, "ds_shape", parameter.shape)) in (2, 3)  # sharded ones have lost their shape
        and parameter.requires_grad
        and id(parameter) not in embeddings
    ]


def _cpu_adam(parameters: list[torch.nn.Parameter], options: dict[str, Any]) -> torch.optim.Optimizer:
    """Make DeepSpeed's AdamW for host memory, which compiles itself on first use (about a minute)."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"--ds.adam_offload compiles DeepSpeed's CPU Adam, and the learner's machine has no C++ compiler "
            f"{compiler!r}; install g++ there, or leave --ds.adam_offload out"
        )
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    made: torch.optim.Optimizer = DeepSpeedCPUAdam(parameters, lr=0.0, adamw_mode=True, **options)
    return made
