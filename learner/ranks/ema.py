"""A moving average of a trained model's weights (Polyak and Juditsky 1992), kept in shards like the weights."""

import torch

from .strategy import Strategy


class Ema:
    """Averages the optimiser's float32 weights, after each of its steps, without gathering anything.

    Args:
        strategy: Whose weights.
        beta: Share of the average that stays at each step.
    """

    def __init__(self, strategy: Strategy, beta: float) -> None:
        self._strategy, self._beta = strategy, beta
        self._shards = {name: shard.detach().clone() for name, shard in strategy.master_shards().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights."""
        for name, shard in self._strategy.master_shards().items():
            self._shards[name].lerp_(shard, 1 - self._beta)

    def whole(self, name: str) -> torch.Tensor | None:
        """Gather the average of one parameter, in float32; a collective. None for one that is not trained."""
        return self._strategy.whole(name, self._shards[name]) if name in self._shards else None

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return this rank's shards."""
        return self._shards

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take back what `state_dict` gave; the number of ranks must be the same."""
        for name, shard in state.items():
            self._shards[name].copy_(shard)
