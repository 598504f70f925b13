"""Policy losses per token: pure functions from `PolicyInputs`, to be summed by the weights of an aggregation."""

# N tokens, M action tokens

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...registry import Registry
from ..metrics import Largest, Mean, Metrics
from .ratios import bounded_logprobs, log_ratio, ratio
from .sequence_sums import sequence_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PolicyInputs:
    """What a policy loss may look at, flat over the tokens of a micro-batch.

    Attributes:
        logprobs_N: Of the policy being trained, with gradient.
        old_logprobs_N: Of the policy that the step started from.
        advantages_N: One per token.
        is_weights_N: Weights of an importance-sampling correction, detached; 1 without one.
        is_action_N: Which tokens count; anything may stand at the others.
        sequence_N: int64, the sequence each token belongs to, from 0.
        num_sequences: How many there are, for losses of whole sequences.
    """

    logprobs_N: "Tensor"
    old_logprobs_N: "Tensor"
    advantages_N: "Tensor"
    is_weights_N: "Tensor"
    is_action_N: "Tensor"
    sequence_N: "Tensor"
    num_sequences: int


@dataclass(frozen=True)
class PolicyOptions:
    """Bounds of the policy's change.

    Attributes:
        eps_low, eps_high: The ratio's clip range is [1 - eps_low, 1 + eps_high].
        dual_clip: The objective of a negative advantage is at least this times the advantage; None for no bound.
        gate_positive, gate_negative: Steepness of the soft gate of sapo by the sign of the advantage.
    """

    eps_low: float = 0.2
    eps_high: float = 0.2
    dual_clip: float | None = None
    gate_positive: float = 1.0
    gate_negative: float = 1.05

    def __post_init__(self) -> None:
        if not 0 <= self.eps_low <= 1 or self.eps_high < 0:
            raise ConfigError(f"wanted 0 <= eps_low <= 1 and 0 <= eps_high, got {self.eps_low} and {self.eps_high}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(
                f"dual_clip must be greater than 1 (a ratio for negative advantages), got {self.dual_clip}"
            )
        if self.gate_positive <= 0 or self.gate_negative <= 0:
            raise ConfigError(
                f"both sapo_temperatures must be positive, got {self.gate_positive} and {self.gate_negative}"
            )


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, 0 off actions."""

    loss_N: "Tensor"
    metrics: Metrics


POLICY_LOSSES: Registry[Callable[[PolicyInputs, PolicyOptions], TokenLoss]] = Registry("policy loss")

DUAL_CLIPPED = ("ppo", "gspo")
"""Losses that honour `dual_clip`."""

DEFAULT_AGGREGATIONS = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
"""How the papers aggregate, where that is not token-mean (OpenRLHF: gspo; TRL: sapo)."""


@POLICY_LOSSES.register("ppo")
def ppo(inputs: PolicyInputs, options: PolicyOptions) -> TokenLoss:
    """Clip the ratio where moving on would raise the objective (PPO, arXiv:1707.06347).

    Two clip ranges as in DAPO (arXiv:2503.14476). With `dual_clip` the objective of a negative advantage is at
    least dual_clip * advantage (arXiv:1912.09729). The log-ratio is bounded at +-20 (OpenRLHF and verl; TRL not).
    """
    log_ratio_N = _log_ratio(inputs)
    return _clipped(inputs, options, ratio(log_ratio_N), log_ratio_N)


@POLICY_LOSSES.register("gspo")
def gspo(inputs: PolicyInputs, options: PolicyOptions) -> TokenLoss:
    """Clip the ratio of the whole sequence: the geometric mean of its tokens' ratios (GSPO, arXiv:2507.18071).

    A sequence is one of the batch; an attempt may have several. Each token has the sequence's ratio as its value and
    the gradient of its own logprob (the paper's GSPO-token, verl). For one advantage and one weight per sequence that
    is exactly the gradient through the sequence's ratio (OpenRLHF, TRL); for advantages or weights per token each
    token answers for its own, where the gradient through the ratio would spread their mean over all. Weights of a
    correction multiply (verl; OpenRLHF puts the engine's logprobs into the ratio instead). The mean log-ratio is
    bounded at +-20 (verl at 10). Clip ranges are to be small: the paper has 3e-4 and 4e-4.
    """
    log_ratio_N = _log_ratio(inputs)
    mean_N = sequence_mean(log_ratio_N.detach(), inputs.is_action_N, inputs.sequence_N, inputs.num_sequences)
    own_N = log_ratio_N - log_ratio_N.detach()  # adds 0 to the value, the token's slope to the gradient
    return _clipped(inputs, options, ratio(mean_N.to(own_N.dtype) + own_N), log_ratio_N)


@POLICY_LOSSES.register("cispo")
def cispo(inputs: PolicyInputs, options: PolicyOptions) -> TokenLoss:
    """Clip the weight of a token, never its gradient (CISPO of MiniMax-M1, arXiv:2506.13585).

    The ratio, detached and clamped to [1 - eps_low, 1 + eps_high], weighs advantage times logprob (paper, verl). The
    paper leaves the lower bound out: eps_low 1. TRL has an upper bound only, and its `epsilon_high` is that bound
    itself: 1 + eps_high here.
    """
    mask_N, log_ratio_N = inputs.is_action_N, _log_ratio(inputs)
    ratio_N = ratio(log_ratio_N.detach())
    weights_N = ratio_N.clamp(1 - options.eps_low, 1 + options.eps_high)
    logprobs_N = bounded_logprobs(inputs.logprobs_N, mask_N)
    loss_N = -weights_N * inputs.advantages_N.where(mask_N, 0.0) * logprobs_N * _is_weights(inputs)
    return TokenLoss(loss_N, _ratio_metrics(ratio_N, log_ratio_N, mask_N) | _clip_metrics(weights_N != ratio_N, mask_N))


@POLICY_LOSSES.register("sapo")
def sapo(inputs: PolicyInputs, options: PolicyOptions) -> TokenLoss:
    """Fade a token's gradient out as its ratio leaves 1, instead of clipping it (SAPO, arXiv:2511.20347).

    The ratio r becomes 4 / t * sigmoid(t * (r - 1)), whose slope at 1 is 1; t is `gate_positive` for positive
    advantages and `gate_negative` for the others. There is no clip range.
    """
    mask_N, log_ratio_N = inputs.is_action_N, _log_ratio(inputs)
    advantages_N = inputs.advantages_N.where(mask_N, 0.0)
    steepness_N = advantages_N.new_full((), options.gate_positive).where(advantages_N > 0, options.gate_negative)
    ratio_N = ratio(log_ratio_N)
    gate_N = (steepness_N * (ratio_N - 1)).sigmoid() * 4 / steepness_N
    return TokenLoss(-gate_N * advantages_N * _is_weights(inputs), _ratio_metrics(ratio_N, log_ratio_N, mask_N))


def _clipped(inputs: PolicyInputs, options: PolicyOptions, ratio_N: "Tensor", log_ratio_N: "Tensor") -> TokenLoss:
    mask_N = inputs.is_action_N
    advantages_N = inputs.advantages_N.where(mask_N, 0.0)
    free_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1 - options.eps_low, 1 + options.eps_high) * advantages_N
    objective_N = free_N.minimum(clipped_N)
    if options.dual_clip is not None:
        floored_N = objective_N.maximum(options.dual_clip * advantages_N)
        objective_N = floored_N.where(advantages_N < 0, objective_N)
    metrics = _ratio_metrics(ratio_N, log_ratio_N, mask_N) | _clip_metrics(clipped_N < free_N, mask_N)
    return TokenLoss(-objective_N * _is_weights(inputs), metrics)


def _log_ratio(inputs: PolicyInputs) -> "Tensor":
    return log_ratio(inputs.logprobs_N, inputs.old_logprobs_N.detach(), inputs.is_action_N)


def _is_weights(inputs: PolicyInputs) -> "Tensor":
    return inputs.is_weights_N.detach().where(inputs.is_action_N, 0.0)


def _ratio_metrics(ratio_N: "Tensor", log_ratio_N: "Tensor", mask_N: "Tensor") -> Metrics:
    """Measure the ratio that the loss has, and the KL(old || new) that its tokens estimate."""
    ratio_M, log_ratio_M = (x_N.detach()[mask_N].double() for x_N in (ratio_N, log_ratio_N))
    count = len(log_ratio_M)
    return {
        "policy/ratio_mean": Mean(ratio_M.sum().item(), count),
        "policy/ratio_max": Largest(ratio_M.max().item() if count else None),
        "policy/approx_kl": Mean((ratio(log_ratio_M) - 1 - log_ratio_M).sum().item(), count),
    }


def _clip_metrics(is_clipped_N: "Tensor", mask_N: "Tensor") -> Metrics:
    return {"policy/clip_fraction": Mean(is_clipped_N[mask_N].sum().item(), mask_N.sum().item())}
