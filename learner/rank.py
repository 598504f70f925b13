"""One learner rank: a process that holds its share of the actor (and reference), trains it, and exports weights.

The driver calls all ranks at once with the same method; whatever needs all of them is a collective
with a deadline. `request_stop` may come from another thread at any time.
"""

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import LearnerError
from ..executors.weights import Bucket, TensorSpec
from .aggregations import Totals
from .batch import Batch
from .deepspeed_strategy import DeepSpeedConfig, DeepSpeedStrategy, init_process_group
from .metrics import Metrics, merge
from .objective import Objective

if TYPE_CHECKING:
    from ..executors.transports import BucketWriter

Role = Literal["actor", "reference"]


@dataclass(frozen=True)
class RankConfig:
    """What every rank is made with."""

    actor: DeepSpeedConfig
    reference: DeepSpeedConfig | None
    seed: int
    num_threads: int  # on CPU
    timeout_s: float
    bucket_bytes: int = 256 << 20
    is_deterministic: bool = False


@dataclass(frozen=True)
class StepResult:
    """One rank's part of an optimiser step."""

    loss: float  # this rank's share; the shares add up
    grad_norm: float | None  # of the whole model, before clipping; None where fp16 overflowed: no step was taken
    metrics: Metrics


class LearnerRank:
    """One rank; made as a Ray actor, with a second thread for `request_stop`."""

    def __init__(self, config: RankConfig, rank: int, world_size: int) -> None:
        self._config = config
        self._rank, self._world_size = rank, world_size
        self._stop = threading.Event()
        self._writer: BucketWriter | None = None
        self._plan: list[tuple[TensorSpec, ...]] = []

    def address(self) -> tuple[str, int]:
        """Return this host's address and a free port, for the ranks to meet at."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def setup(self, address: str, port: int) -> int:
        """Join the other ranks and load the models; return the number of parameters."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import torch

        torch.set_num_threads(self._config.num_threads)
        torch.manual_seed(self._config.seed + self._rank)
        # torch.load does not look at these sums, and computing them is most of the time of a checkpoint.
        torch.serialization.set_crc32_options(False)
        if self._config.is_deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self._device = init_process_group(self._rank, self._world_size, address, port, self._config.timeout_s)
        self._actor = DeepSpeedStrategy(self._config.actor, self._device)
        self._reference = None
        if self._config.reference is not None:
            self._reference = DeepSpeedStrategy(self._config.reference, self._device)
        return sum(int(np.prod(spec.shape)) for spec in self._actor.tensor_specs())

    def logprobs(self, micro_batches: Sequence[Batch], role: Role) -> list[NDArray[np.float32]] | None:
        """Return each micro-batch's logprobs [N] under a role's weights; None when told to stop."""
        import torch

        from .logprobs import action_logprobs

        strategy = self._actor if role == "actor" else self._reference
        if strategy is None:
            raise LearnerError("there is no reference model; --algo.kl.init_coef 0 loads none")
        scored = []
        for batch in micro_batches:
            if self._told_to_stop():
                return None
            with torch.no_grad():
                scored.append(action_logprobs(strategy.model, batch, self._device).logprobs_N.cpu().numpy())
        return scored

    def train(
        self, micro_batches: Sequence[Batch], totals: Totals, objective: Objective, lr: float, may_stop: bool = True
    ) -> StepResult | None:
        """Take one optimiser step; None when told to stop (if it may), with the weights as they were.

        Raises:
            LearnerError: Loss or gradient is not finite.
        """
        from .logprobs import action_logprobs

        loss_sum, metrics = 0.0, []
        for index, batch in enumerate(micro_batches):
            if may_stop and self._told_to_stop():
                return None
            scored = action_logprobs(self._actor.model, batch, self._device)
            loss, part = objective(scored, batch, totals)
            loss_sum += float(loss.detach())
            metrics.append(part)
            self._actor.accumulate(loss, is_last=index == len(micro_batches) - 1)
        (total,) = self._actor.reduce_sum([loss_sum])
        if not np.isfinite(total):
            raise LearnerError(f"the loss of this step is {total}; the step was not taken")
        grad_norm = self._actor.step(lr)
        if grad_norm is not None and not np.isfinite(grad_norm):
            raise LearnerError(f"the gradient norm is {grad_norm}; go on from the last checkpoint, with a lower rate")
        return StepResult(loss_sum, grad_norm, merge(metrics))

    def request_stop(self) -> None:
        """End what is running at the next micro-batch; called from another thread."""
        self._stop.set()

    def plan_export(self, dtype: str) -> int:
        """Lay out the buckets, with floating tensors as `dtype`, and return how many there are."""
        from ..executors.transports import CudaIpcWriter, ShmWriter
        from .strategy import buckets

        specs = [TensorSpec(spec.name, dtype, spec.shape) for spec in self._actor.tensor_specs()]
        self._plan = list(buckets(specs, self._config.bucket_bytes))
        if self._rank == 0:
            self._writer = CudaIpcWriter(self._plan) if self._device.type == "cuda" else ShmWriter(self._plan)
        return len(self._plan)

    def export(self, index: int) -> Bucket | None:
        """Gather bucket `index` on all ranks; rank 0 writes it and returns it."""
        with self._actor.gathered([spec.name for spec in self._plan[index]]) as tensors:
            return None if self._writer is None else self._writer.write(index, tensors)

    def scale_weights(self, *, undo: bool) -> None:
        """Halve every tensor, or undo that: exact both ways, but for fp16's tiniest numbers until the next step."""
        for specs in self._plan:
            with self._actor.gathered([spec.name for spec in specs], is_changed=True) as tensors:
                for tensor in tensors:
                    tensor.mul_(2.0 if undo else 0.5)

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        """Write this rank's part of a checkpoint."""
        self._actor.save(Path(folder), tag, state)

    def load(self, folder: str, tag: str) -> dict[str, Any]:
        """Read this rank's part of a checkpoint."""
        return self._actor.load(Path(folder), tag)

    def save_hf(self, folder: str, source: str) -> None:
        """Write the actor as a Hugging Face folder, with the tokenizer of `source`."""
        from .hf_folder import save_hf

        specs = self._actor.tensor_specs()
        tensors = {}
        for spec in specs:
            with self._actor.gathered([spec.name]) as (tensor,):
                if self._rank == 0:
                    tensors[spec.name] = tensor.detach().cpu().clone()
        if self._rank == 0:
            save_hf(Path(folder), source, tensors)

    def close(self) -> None:
        """Free the export buffers."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _told_to_stop(self) -> bool:
        """Agree with the other ranks, since all must leave a step at the same micro-batch."""
        (stops,) = self._actor.reduce_sum([float(self._stop.is_set())])
        return stops > 0
