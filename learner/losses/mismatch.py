"""How far the learner's policy lies from the engine's, measured on the tokens that the engine sampled."""

# N tokens, K action tokens whose engine logprob is known

from typing import TYPE_CHECKING

from ..metrics import EffectiveSize, Largest, Mean, Metrics
from .ratios import ratio

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_LAG = 8
"""Lags from here on are measured together."""


def mismatch_metrics(
    log_ratio_N: "Tensor",
    is_known_N: "Tensor",
    is_action_N: "Tensor",
    bounds: tuple[float, float],
    lags_N: "Tensor | None" = None,
) -> Metrics:
    """Measure log(learner / engine): k1 and k3 estimate KL(engine || learner), since the engine sampled the tokens.

    With lags, k3 and the absolute difference also stand for each lag alone: at lag 0 only the numerics differ (kernels,
    precision), and what comes on top at greater lags is staleness.
    """
    log_ratio_K = log_ratio_N[is_known_N].double()
    ratio_K = ratio(log_ratio_K)
    k3_K = ratio_K - 1 - log_ratio_K
    low, high = bounds
    count, num_actions = len(log_ratio_K), is_action_N.sum().item()
    metrics: Metrics = {
        "mismatch/abs_diff": Mean(log_ratio_K.abs().sum().item(), count),
        "mismatch/kl_k1": Mean(-log_ratio_K.sum().item(), count),
        "mismatch/kl_k3": Mean(k3_K.sum().item(), count),
        "mismatch/ratio_mean": Mean(ratio_K.sum().item(), count),
        "mismatch/ratio_max": Largest(ratio_K.max().item() if count else None),
        "mismatch/outside_bounds": Mean(((ratio_K < low) | (ratio_K > high)).sum().item(), count),
        "mismatch/unknown": Mean(num_actions - count, num_actions),
    }
    if lags_N is not None and count:
        metrics |= _by_lag("mismatch/kl_k3", k3_K, lags_N[is_known_N])
        metrics |= _by_lag("mismatch/abs_diff", log_ratio_K.abs(), lags_N[is_known_N])
    return metrics


def weight_metrics(weights_N: "Tensor", ratios_N: "Tensor", is_action_N: "Tensor") -> Metrics:
    """Measure the weights: how many are 0, how many a bound has changed, and Kish's effective sample size."""
    weights_M, ratios_M = weights_N[is_action_N].double(), ratios_N[is_action_N].double()
    count = len(weights_M)
    is_masked_M = weights_M == 0
    is_clipped_M = ~is_masked_M & (weights_M != ratios_M)
    return {
        "is_weight/mean": Mean(weights_M.sum().item(), count),
        "is_weight/effective_size": EffectiveSize(weights_M.sum().item(), weights_M.square().sum().item(), count),
        "is_weight/masked": Mean(is_masked_M.sum().item(), count),
        "is_weight/clipped": Mean(is_clipped_M.sum().item(), count),
    }


def _by_lag(name: str, values_K: "Tensor", lags_K: "Tensor") -> Metrics:
    lags_K = lags_K.clamp(0, LONGEST_LAG)
    totals = values_K.new_zeros(LONGEST_LAG + 1).index_add(0, lags_K, values_K).tolist()
    counts = lags_K.bincount(minlength=LONGEST_LAG + 1).tolist()
    return {
        f"{name}/lag_{lag}{'_and_more' if lag == LONGEST_LAG else ''}": Mean(total, count)
        for lag, (total, count) in enumerate(zip(totals, counts, strict=True))
        if count
    }
