"""What the learner needs of a training backend; DeepSpeed is the first, another can stand beside it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from ...executors.engines.weights import TensorSpec
from ..models.lora import Adapters


class Strategy(Protocol):
    """One rank's share of a model, its optimiser, and the collectives around them.

    All ranks call the same methods in the same order; each collective ends within the deadline that
    the process group was made with, or raises.
    """

    rank: int
    world_size: int
    device: torch.device
    adapters: Adapters | None  # None where all weights are trained

    @property
    def model(self) -> torch.nn.Module:
        """The model to call; a forward pass is a collective."""
        ...

    def accumulate(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Run backward; gradients are *summed* over micro-batches and ranks."""
        ...

    def step(self, lr: float) -> float | None:
        """Clip, take one optimiser step, and return the gradient norm before clipping.

        The rate is AdamW's; that of parameters under another optimiser keeps its proportion to it.

        None where half precision overflowed and the step was left out, as now and then it will.
        """
        ...

    def reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Return the sums of these numbers over all ranks."""
        ...

    def tensor_specs(self) -> list[TensorSpec]:
        """Name, dtype and full shape of each parameter, tied ones once; with adapters those of the merged model."""
        ...

    def adapter_specs(self) -> list[TensorSpec]:
        """Name, dtype and full shape of the adapters' tensors, as peft's files name them."""
        ...

    def export_specs(self) -> list[TensorSpec]:
        """Return what engines get: all tensors, or those of the adapters alone."""
        ...

    def gathered(
        self,
        names: Sequence[str],
        *,
        is_changed: bool = False,
        instead: Callable[[str], torch.Tensor | None] | None = None,
    ) -> AbstractContextManager[list[torch.Tensor]]:
        """Give the full tensors of these parameters while the context is open.

        `is_changed` keeps rank 0's changes; `instead` may give another whole tensor for a parameter's name.
        """
        ...

    def master_shards(self) -> dict[str, torch.Tensor]:
        """Return this rank's share of each trained parameter as the optimiser holds it, in float32; not a copy."""
        ...

    def whole(self, name: str, shard: torch.Tensor) -> torch.Tensor:
        """Put together a tensor that is sharded like parameter `name`, from this shard and the other ranks'."""
        ...

    def base_weights(self) -> AbstractContextManager[None]:
        """Let the model compute without its adapters while the context is open."""
        ...

    def perturb_adapters(self, *, undo: bool) -> None:
        """Change strongly what engines get of a model with adapters, or undo that exactly."""
        ...

    def save(self, folder: Path, tag: str, state: dict[str, Any]) -> None:
        """Write model, optimiser and this rank's random state."""
        ...

    def load(self, folder: Path, tag: str) -> dict[str, Any]:
        """Read what `save` wrote and return `state`."""
        ...


def buckets(specs: Sequence[TensorSpec], max_bytes: int) -> Iterator[tuple[TensorSpec, ...]]:
    """Cut tensors, in order, into buckets of at most `max_bytes`; a larger tensor goes alone."""
    bucket: list[TensorSpec] = []
    size = 0
    for spec in specs:
        if bucket and size + spec.num_bytes > max_bytes:
            yield tuple(bucket)
            bucket, size = [], 0
        bucket.append(spec)
        size += spec.num_bytes
    if bucket:
        yield tuple(bucket)
