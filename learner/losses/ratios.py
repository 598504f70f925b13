"""Log-ratios between two policies, bounded before they become ratios.

Values at masked positions (padding, context, unknown logprobs) enter nothing, forward or backward: they are
replaced by `where`, since 0 * NaN is NaN. Half precision is widened to float32.
"""

# N tokens

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Largest log-ratio, either way, that is exponentiated (as in OpenRLHF and verl; TRL has none): e^20 is 4.9e8."""

LOWEST_LOGPROB = -1e15
"""Stands in for -inf, so that the difference of two impossible tokens is 0 and not NaN."""


def log_ratio(new_logprobs_N: "Tensor", old_logprobs_N: "Tensor", is_action_N: "Tensor") -> "Tensor":
    """Return log(new / old), 0 off actions; not yet bounded."""
    return bounded_logprobs(new_logprobs_N, is_action_N) - bounded_logprobs(old_logprobs_N, is_action_N)


def ratio(log_ratio_N: "Tensor") -> "Tensor":
    """Return exp of the log-ratio; finite for any input, with gradient 0 beyond the bound."""
    return log_ratio_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def widened(values_N: "Tensor") -> "Tensor":
    """Return the tensor in float32 if it has a smaller type."""
    return values_N.float() if values_N.element_size() < 4 else values_N


def bounded_logprobs(logprobs_N: "Tensor", is_action_N: "Tensor") -> "Tensor":
    """Return the logprobs, 0 off actions and `LOWEST_LOGPROB` for an impossible token, whose gradient is 0."""
    return widened(logprobs_N).where(is_action_N, 0.0).clamp(min=LOWEST_LOGPROB)
