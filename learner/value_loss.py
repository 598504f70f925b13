"""What a critic learns."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Batch
from .losses import Totals, aggregate, aggregation_weights
from .metrics import Mean, Metrics
from .value_model import values_before_actions


@dataclass(frozen=True)
class ValueObjective:
    """Half the squared error of each action's value, clipped around the value before the step (PPO2)."""

    value_clip: float | None

    @property
    def needs_all_sequences(self) -> bool:
        """Every sequence teaches the critic."""
        return True

    def of_model(
        self, model: torch.nn.Module, batch: Batch, totals: Totals, device: torch.device | str
    ) -> tuple[Tensor, Metrics]:
        """Run the critic over a micro-batch; return its share of the loss, and its metrics."""
        return self(values_before_actions(model, batch, device), batch, totals)

    def __call__(self, values_N: Tensor, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Return this part's share of the loss, and its metrics."""
        assert batch.values is not None
        assert batch.returns is not None
        device = values_N.device
        is_action_N = torch.tensor(batch.is_action, device=device)
        old_N, returns_N = torch.tensor(batch.values, device=device), torch.tensor(batch.returns, device=device)
        loss_N = (values_N - returns_N).square()
        if self.value_clip is not None:
            near_N = old_N + (values_N - old_N).clamp(-self.value_clip, self.value_clip)
            loss_N = loss_N.maximum((near_N - returns_N).square())
        weights_N = torch.tensor(aggregation_weights("token-mean", batch, totals), device=device)
        loss = aggregate(loss_N / 2, weights_N, is_action_N) + 0.0 * values_N.sum()
        count = int(is_action_N.sum())
        return loss, {"value/mean": Mean(values_N.detach().where(is_action_N, 0.0).sum().item(), count)}
