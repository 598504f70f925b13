"""Per-token estimates of KL(policy || reference) from logprobs of sampled tokens.

After http://joschu.net/blog/kl-approx.html. k1 is unbiased and may be negative, k2 is biased with the right
gradient, k3 is unbiased and never negative. As a loss, k1's gradient is 0 on average: use k2 or k3 there.

In the loss, k1 and k2 are exactly as defined (OpenRLHF caps their values at 10, which leaves a token that drifted
far without any gradient back). k3 is exact up to a log-ratio of 10; beyond, its value is capped at e^10 - 11 and its
gradient held at the steepest it reached, so that the token is still pulled back (OpenRLHF and verl: value 10 and
gradient 0 from 2.6 on; TRL: no bound). In the reward, where there is no gradient to lose, the value of each is
capped to [-10, 10] as in OpenRLHF, so that one token cannot outweigh a batch.
"""

# N tokens, M action tokens

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...registry import Registry
from ..metrics import Mean, Metrics
from .ratios import bounded_logprobs, log_ratio, ratio

if TYPE_CHECKING:
    from torch import Tensor

K3_BOUND = 10.0
"""Largest log(reference / policy) that is exponentiated; its gradient still fits into half precision."""

REWARD_CAP = 10.0
"""Largest KL of one token, either way, that is put into the reward."""

LARGEST_KL_WEIGHT = 10.0
"""Bound of the ratio that weighs an unbiased gradient (OpenRLHF; TRL and the paper have none)."""

KL_ESTIMATORS: Registry[Callable[["Tensor"], "Tensor"]] = Registry("KL estimator")
"""Functions from log(policy / reference) per token to the KL per token."""


@KL_ESTIMATORS.register("k1")
def k1(log_ratio_N: "Tensor") -> "Tensor":
    """Return log(policy / reference) itself."""
    return log_ratio_N


@KL_ESTIMATORS.register("k2")
def k2(log_ratio_N: "Tensor") -> "Tensor":
    """Return half the square of the log-ratio."""
    return log_ratio_N.square() / 2


@KL_ESTIMATORS.register("k3")
def k3(log_ratio_N: "Tensor") -> "Tensor":
    """Return r - 1 - log r with r = reference / policy, bounded before exp: capped after it, backward is 0 * inf."""
    inverse_N = -log_ratio_N
    bounded_N = inverse_N.clamp(max=K3_BOUND)
    # Not the difference of the two: of its slope within the bound, e^10 - e^10, float32 keeps an error of 0.001.
    beyond_N = (inverse_N - K3_BOUND).relu()
    held_N = math.expm1(K3_BOUND) * (beyond_N - beyond_N.detach())  # adds 0 to the value, the slope to the gradient
    return bounded_N.expm1() - bounded_N + held_N


def token_kl(
    estimator: str,
    logprobs_N: "Tensor",
    ref_logprobs_N: "Tensor",
    is_action_N: "Tensor",
) -> "Tensor":
    """Return the KL of each token, 0 off actions, with gradient to `logprobs_N`."""
    return KL_ESTIMATORS[estimator](log_ratio(logprobs_N, ref_logprobs_N, is_action_N))


def unbiased_token_kl(
    estimator: str,
    logprobs_N: "Tensor",
    ref_logprobs_N: "Tensor",
    old_logprobs_N: "Tensor",
    is_action_N: "Tensor",
) -> "Tensor":
    """Return the KL of each token weighed by w = policy / old, with the gradient w * log(policy / reference).

    The tokens came from the old policy, and the mean of that gradient over them is the gradient of the KL, whichever
    estimator gives the value. For k3 it is the gradient of w * k3 (DeepSeek-V3.2, arXiv:2512.02556; TRL's
    `use_bias_correction_kl`); that of w * k2 would be biased and that of w * k1 noisier. OpenRLHF has the same
    gradient and leaves the value unweighed. w is bounded by `LARGEST_KL_WEIGHT`, the log-ratio is not.
    """
    policy_N = bounded_logprobs(logprobs_N, is_action_N)
    log_ratio_N = log_ratio(logprobs_N.detach(), ref_logprobs_N, is_action_N)
    drift_N = log_ratio(logprobs_N.detach(), old_logprobs_N.detach(), is_action_N)
    weights_N = ratio(drift_N).clamp(max=LARGEST_KL_WEIGHT)
    slope_N = weights_N * log_ratio_N * (policy_N - policy_N.detach())  # adds 0 to the value
    return weights_N * KL_ESTIMATORS[estimator](log_ratio_N) + slope_N


def reward_kl(
    estimator: str,
    logprobs_M: NDArray[np.float32],
    ref_logprobs_M: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return the KL of each action token as it goes into the reward: in float64, capped to `REWARD_CAP`."""
    import torch

    policy_M, ref_M = (torch.from_numpy(x.astype(np.float64)) for x in (logprobs_M, ref_logprobs_M))
    kl_M = token_kl(estimator, policy_M, ref_M, torch.ones(len(policy_M), dtype=torch.bool))
    capped: NDArray[np.float64] = kl_M.clamp(-REWARD_CAP, REWARD_CAP).numpy()
    return capped


def kl_metrics(kl_N: "Tensor", is_action_N: "Tensor") -> Metrics:
    """Return the mean over action tokens."""
    return {"kl/reference": Mean(kl_N.detach().where(is_action_N, 0.0).sum().item(), is_action_N.sum().item())}
