"""Policy losses per token, and how they become one number.

A loss is a pure function from `PolicyInputs` to a loss per token; an aggregation is a weight per token that
already holds the *global* denominator, so that micro-batches and ranks just add up: whatever the split, the
sum of all parts is the same loss with the same gradient.
"""

# N tokens, A attempts

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..registry import Registry
from .batch import Batch
from .metrics import Largest, Mean, Metrics
from .ratios import log_ratio, ratio

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
    """Bounds of the policy's change: the ratio's clip range is [1 - eps_low, 1 + eps_high]."""

    eps_low: float = 0.2
    eps_high: float = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.eps_low <= 1 or self.eps_high < 0:
            raise ConfigError(f"wanted 0 <= eps_low <= 1 and 0 <= eps_high, got {self.eps_low} and {self.eps_high}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(
                f"dual_clip must be greater than 1 (a ratio for negative advantages), got {self.dual_clip}"
            )


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, 0 off actions."""

    loss_N: "Tensor"
    metrics: Metrics


POLICY_LOSSES: Registry[Callable[[PolicyInputs, PolicyOptions], TokenLoss]] = Registry("policy loss")


@POLICY_LOSSES.register("ppo")
def ppo(inputs: PolicyInputs, options: PolicyOptions) -> TokenLoss:
    """Clip the ratio where moving on would raise the objective (PPO, arXiv:1707.06347).

    Two clip ranges as in DAPO (arXiv:2503.14476). With `dual_clip` the objective of a negative advantage is at
    least dual_clip * advantage (arXiv:1912.09729). The log-ratio is bounded at +-20 (OpenRLHF and verl; TRL not).
    """
    mask_N = inputs.is_action_N
    log_ratio_N = log_ratio(inputs.logprobs_N, inputs.old_logprobs_N.detach(), mask_N)
    ratio_N = ratio(log_ratio_N)
    advantages_N = inputs.advantages_N.where(mask_N, 0.0)
    free_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1 - options.eps_low, 1 + options.eps_high) * advantages_N
    objective_N = free_N.minimum(clipped_N)
    if options.dual_clip is not None:
        floored_N = objective_N.maximum(options.dual_clip * advantages_N)
        objective_N = floored_N.where(advantages_N < 0, objective_N)
    loss_N = -objective_N * inputs.is_weights_N.detach().where(mask_N, 0.0)
    return TokenLoss(loss_N, _ratio_metrics(log_ratio_N, clipped_N < free_N, mask_N))


def _ratio_metrics(log_ratio_N: "Tensor", is_clipped_N: "Tensor", mask_N: "Tensor") -> Metrics:
    log_ratio_M = log_ratio_N.detach()[mask_N].double()
    ratio_M = ratio(log_ratio_M)
    count = len(log_ratio_M)
    return {
        "policy/clip_fraction": Mean(is_clipped_N[mask_N].sum().item(), count),
        "policy/ratio_mean": Mean(ratio_M.sum().item(), count),
        "policy/ratio_max": Largest(ratio_M.max().item() if count else None),
        "policy/approx_kl": Mean((ratio_M - 1 - log_ratio_M).sum().item(), count),
    }


@dataclass(frozen=True)
class Totals:
    """Counts over one optimiser step: all ranks, all micro-batches.

    Attributes:
        num_actions: Action tokens.
        num_attempts: Attempts with action tokens; one of several sequences counts once.
        actions_per_attempt_A: int64, by the numbers in `Batch.attempts`.
    """

    num_actions: int
    num_attempts: int
    actions_per_attempt_A: NDArray[np.int64]


def count_totals(batch: Batch) -> Totals:
    """Count the whole batch of one optimiser step, before it is dealt to ranks."""
    per_attempt = np.bincount(batch.attempt_of_token[batch.is_action]).astype(np.int64)
    return Totals(int(per_attempt.sum()), int((per_attempt > 0).sum()), per_attempt)


LOSS_AGGREGATIONS: Registry[Callable[[Batch, Totals], NDArray[np.float64]]] = Registry("loss aggregation")
"""Functions from a part of a batch and the totals of the whole to weights of its action tokens [M]."""


@LOSS_AGGREGATIONS.register("token-mean")
def token_mean(batch: Batch, totals: Totals) -> NDArray[np.float64]:
    """Weigh each action token of the step alike (DAPO, arXiv:2503.14476)."""
    return np.full(batch.num_actions, 1 / max(1, totals.num_actions))


@LOSS_AGGREGATIONS.register("seq-mean-token-mean")
def seq_mean_token_mean(batch: Batch, totals: Totals) -> NDArray[np.float64]:
    """Weigh each attempt alike, and each token within its attempt (GRPO, arXiv:2402.03300).

    An attempt of several sequences is one mean over all its action tokens; one without action tokens leaves the
    denominator (as in OpenRLHF and verl; TRL counts it).
    """
    actions_M = totals.actions_per_attempt_A[batch.attempt_of_token[batch.is_action]]
    return 1 / (max(1, totals.num_attempts) * actions_M)


def aggregation_weights(name: str, batch: Batch, totals: Totals) -> NDArray[np.float64]:
    """Return the weight of each token of this part, 0 off actions; over a whole step they sum to 1 for any mean."""
    weights_N = np.zeros(batch.num_tokens)
    weights_N[batch.is_action] = LOSS_AGGREGATIONS[name](batch, totals)
    return weights_N


def aggregate(loss_N: "Tensor", weights_N: "Tensor", is_action_N: "Tensor") -> "Tensor":
    """Sum the weighted losses of action tokens; without any, a zero that still carries gradients.

    The parts of a step are to be added up. A backend that averages gradients over R ranks or K accumulation
    steps has divided once too often: multiply the loss by R or K there.
    """
    return (loss_N.where(is_action_N, 0.0) * weights_N.to(loss_N.dtype)).sum()
