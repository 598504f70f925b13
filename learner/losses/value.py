"""What a micro-batch contributes to one step of the critic: the clipped value loss and how well it explains returns."""

# N tokens, M action tokens

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import ConfigError, TrajectoryError
from ..batch import Batch
from ..metrics import ExplainedVariance, Mean, Metrics, Moments
from ..models.value_model import values_before_actions
from .aggregations import Totals, aggregate, aggregation_weights
from .ratios import widened


@dataclass(frozen=True)
class ValueObjective:
    """The critic's loss; small, picklable, the same on every rank.

    Per action token half the larger of (value - return)^2 and the same with the value held within `value_clip` of the
    value before the step (PPO2, OpenRLHF, TRL, verl); then the mean over all action tokens of the step, whatever the
    policy loss does (OpenRLHF). A negative advantage or a weight of 0 of the policy's tokens changes nothing here.

    Attributes:
        value_clip: Clip range around the old value; None clips nothing and needs no old values.
    """

    value_clip: float | None = 0.5

    def __post_init__(self) -> None:
        if self.value_clip is not None and self.value_clip <= 0:
            raise ConfigError(f"--critic.value_clip must be positive, or null for none, got {self.value_clip}")

    @property
    def needs_all_sequences(self) -> bool:
        """Every sequence teaches the critic, whatever its advantages."""
        return True

    def of_model(
        self, model: torch.nn.Module, batch: Batch, totals: Totals, device: torch.device | str
    ) -> tuple[Tensor, Metrics]:
        """Run the critic over a micro-batch; return its share of the loss, and its metrics."""
        values_N = values_before_actions(model, batch, device)
        loss, metrics = self(values_N, batch, totals)
        # An empty part must still run backward through the model, so that sharded ranks stay in step.
        return loss + 0.0 * values_N.sum(), metrics

    def __call__(self, values_N: Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Return this part's share of the loss and its metrics; the shares of a step add up.

        Args:
            values_N: What the critic says of each token, with gradient; anything off actions.
            batch: With returns, and with the values before the step if they clip.
            totals: Of the whole step.

        Raises:
            TrajectoryError: The batch has no returns, or no values to clip around.
        """
        is_action_N = torch.tensor(batch.is_action, device=values_N.device)
        new_N = widened(values_N).where(is_action_N, 0.0)
        returns_N = _known(batch.returns, "returns", is_action_N)
        squares_N = (new_N - returns_N).square()
        larger_N = squares_N
        if self.value_clip is not None:
            old_N = _known(batch.values, "values", is_action_N)
            held_N = old_N + (new_N - old_N).clamp(-self.value_clip, self.value_clip)
            larger_N = squares_N.maximum((held_N - returns_N).square())
        weights_N = torch.tensor(aggregation_weights("token-mean", batch, totals), device=values_N.device)
        loss = aggregate(larger_N / 2, weights_N, is_action_N)
        return loss, _metrics(new_N, returns_N, larger_N, larger_N > squares_N, is_action_N)


def _known(array: object, name: str, is_action_N: Tensor) -> Tensor:
    if array is None:
        raise TrajectoryError(f"the value loss needs {name} in the batch, and it has none; set them before the step")
    return torch.tensor(array, device=is_action_N.device).where(is_action_N, 0.0)


def _metrics(new_N: Tensor, returns_N: Tensor, larger_N: Tensor, is_clipped_N: Tensor, mask_N: Tensor) -> Metrics:
    new_M, returns_M, larger_M = (x_N.detach()[mask_N].double() for x_N in (new_N, returns_N, larger_N))
    count = len(new_M)
    return {
        "value/loss": Mean(larger_M.sum().item() / 2, count),
        "value/clip_fraction": Mean(is_clipped_N[mask_N].sum().item(), count),
        "value/mean": Mean(new_M.sum().item(), count),
        "value/return_mean": Mean(returns_M.sum().item(), count),
        "value/explained_variance": ExplainedVariance(
            Moments.of(returns_M.tolist()), Moments.of((returns_M - new_M).tolist())
        ),
    }
