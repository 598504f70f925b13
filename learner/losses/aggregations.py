"""How losses per token become one number: a weight per token that already holds the *global* denominator.

Micro-batches and ranks just add up: whatever the split, the sum of all parts is the same loss with the same gradient.
"""

# N tokens, M action tokens, A attempts

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...registry import Registry
from ..batch import Batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Totals:
    """Counts over one optimiser step: all ranks, all micro-batches.

    Attributes:
        num_actions: Action tokens.
        num_attempts: Attempts with action tokens; one of several sequences counts once.
        actions_per_attempt_A: int64, by the numbers in `Batch.attempts`.
        num_tokens: Tokens, context included.
        version: Of the weights that are trained, which the lag of a token is counted from.
    """

    num_actions: int
    num_attempts: int
    actions_per_attempt_A: NDArray[np.int64]
    num_tokens: int
    version: int


def count_totals(batch: Batch, version: int | None = None) -> Totals:
    """Count the whole batch of one optimiser step, before it is dealt to ranks.

    Args:
        batch: All sequences of the step.
        version: Of the weights that are trained; by default the newest that sampled a token of the step, which
            hides a lag that all of them share.
    """
    per_attempt = np.bincount(batch.attempt_of_token[batch.is_action]).astype(np.int64)
    newest = int(batch.versions.max(initial=-1))
    return Totals(
        num_actions=int(per_attempt.sum()),
        num_attempts=int((per_attempt > 0).sum()),
        actions_per_attempt_A=per_attempt,
        num_tokens=batch.num_tokens,
        version=newest if version is None else version,
    )


@dataclass(frozen=True)
class AggregationInputs:
    """What an aggregation may look at.

    Attributes:
        part: The sequences of one micro-batch.
        totals: Of the whole step.
        length: Tokens per attempt in a constant denominator; None where none is known.
    """

    part: Batch
    totals: Totals
    length: int | None = None


LOSS_AGGREGATIONS: Registry[Callable[[AggregationInputs], NDArray[np.float64]]] = Registry("loss aggregation")
"""Functions to the weights of a part's action tokens [M]; attempts without action tokens leave every denominator."""


@LOSS_AGGREGATIONS.register("token-mean")
def token_mean(inputs: AggregationInputs) -> NDArray[np.float64]:
    """Weigh each action token of the step alike (DAPO, arXiv:2503.14476)."""
    return np.full(inputs.part.num_actions, 1 / max(1, inputs.totals.num_actions))


@LOSS_AGGREGATIONS.register("seq-mean-token-mean")
def seq_mean_token_mean(inputs: AggregationInputs) -> NDArray[np.float64]:
    """Weigh each attempt alike, and each token within its attempt (GRPO, arXiv:2402.03300).

    An attempt of several sequences is one mean over all its action tokens; one without action tokens leaves the
    denominator (as in OpenRLHF and verl; TRL counts it).
    """
    part, totals = inputs.part, inputs.totals
    actions_M = totals.actions_per_attempt_A[part.attempt_of_token[part.is_action]]
    return 1 / (max(1, totals.num_attempts) * actions_M)


@LOSS_AGGREGATIONS.register("seq-mean-token-sum")
def seq_mean_token_sum(inputs: AggregationInputs) -> NDArray[np.float64]:
    """Sum over the tokens of an attempt, and take the mean over attempts: a long attempt weighs more.

    This is the policy gradient's own weighting; the loss grows with the length of the answers.
    """
    return np.full(inputs.part.num_actions, 1 / max(1, inputs.totals.num_attempts))


@LOSS_AGGREGATIONS.register("seq-mean-token-sum-norm")
def seq_mean_token_sum_norm(inputs: AggregationInputs) -> NDArray[np.float64]:
    """Divide the sum over an attempt's tokens by a constant length (Dr. GRPO, arXiv:2503.20783).

    The length is the same for all attempts and all steps, so that no answer gains by being long or short.

    Raises:
        ConfigError: No length is known.
    """
    if inputs.length is None or inputs.length < 1:
        raise ConfigError(
            f"seq-mean-token-sum-norm divides by a length of at least 1, got {inputs.length}; "
            "set --actor.loss_agg_length"
        )
    return seq_mean_token_sum(inputs) / inputs.length


def aggregation_weights(name: str, batch: Batch, totals: Totals, length: int | None = None) -> NDArray[np.float64]:
    """Return the weight of each token of this part, 0 off actions; over a whole step they sum to 1 for any mean."""
    weights_N = np.zeros(batch.num_tokens)
    weights_N[batch.is_action] = LOSS_AGGREGATIONS[name](AggregationInputs(batch, totals, length))
    return weights_N


def aggregate(loss_N: "Tensor", weights_N: "Tensor", is_action_N: "Tensor") -> "Tensor":
    """Sum the weighted losses of action tokens; without any, a zero that still carries gradients.

    The parts of a step are to be added up. A backend that averages gradients over R ranks or K accumulation
    steps has divided once too often: multiply the loss by R or K there.
    """
    return (loss_N.where(is_action_N, 0.0) * weights_N.to(loss_N.dtype)).sum()
