"""Importance weights that correct for the engine sampling from a slightly different policy than the learner's.

The same weights give other logprobs in the engine (other kernels, other precision) and older weights give others
still; without correction the gradient is that of neither policy.
"""

# N tokens

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..registry import Registry
from .metrics import EffectiveSize, Largest, Mean, Metrics
from .ratios import log_ratio, ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CorrectionInputs:
    """Two policies' logprobs of the same tokens.

    Attributes:
        logprobs_N: Of the learner's policy that starts the step (old, or current), any gradient ignored.
        rollout_logprobs_N: Of the engine's policy; anything off actions.
        is_action_N: Which tokens count.
        sequence_N: int64, the sequence each token belongs to, from 0.
        num_sequences: How many there are, for corrections of whole sequences.
        bounds: Lower and upper bound of the weight.
    """

    logprobs_N: "Tensor"
    rollout_logprobs_N: "Tensor"
    is_action_N: "Tensor"
    sequence_N: "Tensor"
    num_sequences: int
    bounds: tuple[float, float]

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not 0 <= low <= high:
            raise ConfigError(f"bounds of an importance weight must be 0 <= low <= high, got {self.bounds}")


@dataclass(frozen=True)
class Correction:
    """What to multiply each token's loss with; detached, 1 off actions."""

    weights_N: "Tensor"
    metrics: Metrics


CORRECTIONS: Registry[Callable[[CorrectionInputs], "Tensor"]] = Registry("importance-sampling correction")
"""Functions to weights per token, by "level/mode"; a rejected token has weight 0 and stays in the denominator."""


@CORRECTIONS.register("off")
def off(inputs: CorrectionInputs) -> "Tensor":
    """Leave every token as it is; the mismatch is measured all the same."""
    return _log_ratio(inputs).new_ones(inputs.is_action_N.shape)


@CORRECTIONS.register("token/truncate")
def token_truncate(inputs: CorrectionInputs) -> "Tensor":
    """Truncate each token's ratio to the bounds (TIS; truncation from above as in Ionides 2008).

    As https://fengyao.notion.site/off-policy-rl has it, and as OpenRLHF and TRL do: at both ends; verl
    truncates from above only, which is the lower bound 0.
    """
    return ratio(_log_ratio(inputs)).clamp(*inputs.bounds)


def correct(level: str, mode: str, inputs: CorrectionInputs) -> Correction:
    """Return the weights of this level and mode, and how far apart the two policies are."""
    name = "off" if level == "off" else f"{level}/{mode}"
    mask_N = inputs.is_action_N
    weights_N = CORRECTIONS[name](inputs).detach().where(mask_N, 1.0)
    return Correction(weights_N, _metrics(inputs, weights_N))


def _log_ratio(inputs: CorrectionInputs) -> "Tensor":
    return log_ratio(inputs.logprobs_N.detach(), inputs.rollout_logprobs_N.detach(), inputs.is_action_N)


def _metrics(inputs: CorrectionInputs, weights_N: "Tensor") -> Metrics:
    """Measure over action tokens: `k1` estimates KL(engine || learner) since the engine sampled the tokens."""
    mask_N = inputs.is_action_N
    log_ratio_M = _log_ratio(inputs)[mask_N].double()
    ratio_M, weights_M = ratio(log_ratio_M), weights_N[mask_N].double()
    low, high = inputs.bounds
    count = len(log_ratio_M)
    return {
        "mismatch/abs_diff": Mean(log_ratio_M.abs().sum().item(), count),
        "mismatch/kl_k1": Mean(-log_ratio_M.sum().item(), count),
        "mismatch/kl_k3": Mean((ratio_M - 1 - log_ratio_M).sum().item(), count),
        "mismatch/ratio_mean": Mean(ratio_M.sum().item(), count),
        "mismatch/ratio_max": Largest(ratio_M.max().item() if count else None),
        "mismatch/outside_bounds": Mean(((ratio_M < low) | (ratio_M > high)).sum().item(), count),
        "is_weight/mean": Mean(weights_M.sum().item(), count),
        "is_weight/effective_size": EffectiveSize(weights_M.sum().item(), weights_M.square().sum().item(), count),
    }
