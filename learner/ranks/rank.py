"""One learner rank: a process that holds its share of some models, trains them, and exports the actor's weights.

The driver calls all ranks at once with the same method; whatever needs all of them is a collective
with a deadline. `request_stop` may come from another thread at any time.
"""

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError, LearnerError
from ...executors.engines.weights import Bucket, TensorSpec
from ...executors.fleet.devices import take_devices
from ...executors.fleet.ray_calls import first_line
from ..batch import Batch
from ..losses.aggregations import Totals
from ..metrics import Metrics, merge
from .deepspeed import DeepSpeedConfig, DeepSpeedStrategy, init_process_group
from .roles import AnyObjective, Role

if TYPE_CHECKING:
    from torch import Tensor

    from ...executors.engines.transports import BucketWriter
    from .ema import Ema

_WRITER_ERRORS = ("PytorchStreamWriter", "inline_container", "iostream error")  # torch has no type for them


@dataclass(frozen=True)
class RankConfig:
    """What every rank is made with."""

    models: Mapping[Role, DeepSpeedConfig]  # with adapters in the actor, its base weights are the reference
    seed: int
    num_threads: int  # on CPU
    timeout_s: float
    bucket_bytes: int = 256 << 20
    is_deterministic: bool = False
    ema_beta: float | None = None  # None: no average of the actor is kept


@dataclass(frozen=True)
class StepResult:
    """One rank's part of an optimiser step."""

    loss: float  # this rank's share; the shares add up
    grad_norm: float | None  # of the whole model, before clipping; None where fp16 overflowed: no step was taken
    metrics: Metrics


class LearnerRank:
    """One rank; made as a Ray actor, with a second thread for `request_stop`."""

    def __init__(self, config: RankConfig, rank: int, world_size: int, *, on_gpu: bool = False) -> None:
        self._name = f"rank {rank} of {world_size} ({', '.join(config.models)})"
        self._on_gpu = on_gpu
        if on_gpu:
            take_devices(self._name)
        self._config = config
        self._rank, self._world_size = rank, world_size
        self._stop = threading.Event()
        self._writer: BucketWriter | None = None
        self._plan: list[tuple[TensorSpec, ...]] = []
        self._ema: Ema | None = None

    def address(self) -> tuple[str, int]:
        """Return this host's address and a free port, for the ranks to meet at."""
        import ray

        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), int(probe.getsockname()[1])

    def setup(self, address: str, port: int) -> int:
        """Join the other ranks and load the models; return the number of parameters of the first."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        import torch

        torch.set_num_threads(self._config.num_threads)
        torch.manual_seed(self._config.seed + self._rank)
        # torch.load does not look at these sums, and computing them is most of the time of a checkpoint.
        torch.serialization.set_crc32_options(False)
        if self._config.is_deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        self._device = init_process_group(self._rank, self._world_size, address, port, self._config.timeout_s)
        if self._on_gpu and self._device.type != "cuda":
            raise LearnerError(f"{self._name} was given a GPU, and torch finds none; does its build have CUDA?")
        self._models: dict[Role, DeepSpeedStrategy] = {
            role: DeepSpeedStrategy(config, self._device) for role, config in self._config.models.items()
        }
        self._any = next(iter(self._models.values()))
        if self._config.ema_beta is not None and "actor" in self._models:
            from .ema import Ema

            self._ema = Ema(self._models["actor"], self._config.ema_beta)
        return sum(int(np.prod(spec.shape)) for spec in self._any.tensor_specs())

    def scores(self, micro_batches: Sequence[Batch], role: Role) -> list[NDArray[np.float32]] | None:
        """Return what a role says of each token [N] of each micro-batch; None when told to stop.

        Policies give the logprobs of actions, the critic its values before them, the reward model its number after
        every token.
        """
        import torch

        scored = []
        for batch in micro_batches:
            if self._told_to_stop():
                return None
            with torch.no_grad():
                scored.append(self._score(role, batch).cpu().numpy())
        return scored

    def train(
        self,
        micro_batches: Sequence[Batch],
        role: Role,
        totals: Totals,
        objective: AnyObjective,
        lr: float,
        may_stop: bool = True,
    ) -> StepResult | None:
        """Take one optimiser step; None when told to stop (if it may), with the weights as they were.

        Raises:
            LearnerError: Loss or gradient is not finite.
        """
        strategy = self._model(role)
        loss_sum, metrics = 0.0, []
        for index, batch in enumerate(micro_batches):
            if may_stop and self._told_to_stop():
                return None
            loss, part = objective.of_model(strategy.model, batch, totals, self._device)
            loss_sum += float(loss.detach())
            metrics.append(part)
            strategy.accumulate(loss, is_last=index == len(micro_batches) - 1)
        (total,) = strategy.reduce_sum([loss_sum])
        if not np.isfinite(total):
            raise LearnerError(f"the {role}'s loss of this step is {total}; the step was not taken")
        grad_norm = strategy.step(lr)
        if grad_norm is not None and not np.isfinite(grad_norm):
            raise LearnerError(
                f"the {role}'s gradient norm is {grad_norm}; go on from the last checkpoint, with a lower rate"
            )
        if role == "actor" and self._ema is not None and grad_norm is not None:
            self._ema.update()
        return StepResult(loss_sum, grad_norm, merge(metrics))

    def request_stop(self) -> None:
        """End what is running at the next micro-batch; called from another thread."""
        self._stop.set()

    def plan_export(self, dtype: str) -> int:
        """Lay out the buckets, with floating tensors as `dtype`, and return how many there are."""
        from ...executors.engines.transports import CudaIpcWriter, ShmWriter
        from .strategy import buckets

        specs = [TensorSpec(spec.name, dtype, spec.shape) for spec in self._model("actor").export_specs()]
        self._plan = list(buckets(specs, self._config.bucket_bytes))
        if self._rank == 0:
            self._writer = CudaIpcWriter(self._plan) if self._device.type == "cuda" else ShmWriter(self._plan)
        return len(self._plan)

    def export(self, index: int) -> Bucket | None:
        """Gather bucket `index` on all ranks; rank 0 writes it and returns it."""
        with self._model("actor").gathered([spec.name for spec in self._plan[index]]) as tensors:
            return None if self._writer is None else self._writer.write(index, tensors)

    def scale_weights(self, *, undo: bool) -> None:
        """Halve every tensor, or undo that: exact both ways, but for fp16's tiniest numbers until the next step.

        Of a model with adapters each B becomes noise, and goes back to what it was.
        """
        actor = self._model("actor")
        if actor.adapters is not None:
            actor.perturb_adapters(undo=undo)
            return
        for specs in self._plan:
            with actor.gathered([spec.name for spec in specs], is_changed=True) as tensors:
                for tensor in tensors:
                    tensor.mul_(2.0 if undo else 0.5)

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        """Write this rank's part of a checkpoint: the actor as `folder/tag`, a critic in it."""
        for role, strategy in self._trained():
            place = (Path(folder), tag) if role == "actor" else (Path(folder, tag), role)
            shards = {} if self._ema is None or role != "actor" else {"ema": self._ema.state_dict()}
            try:
                strategy.save(*place, state | shards)
            except (OSError, RuntimeError) as error:
                if not is_of_disk(error):
                    raise
                raise CheckpointError(f"rank {self._rank} cannot write the {role}: {first_line(error)}") from error

    def load(self, folder: str, tag: str) -> dict[str, Any]:
        """Read this rank's part of a checkpoint and return its `state`."""
        state: dict[str, Any] = {}
        for role, strategy in self._trained():
            place = (Path(folder), tag) if role == "actor" else (Path(folder, tag), role)
            state = strategy.load(*place)
            shards = state.pop("ema", None)
            if role == "actor" and self._ema is not None:
                if shards is None:
                    raise CheckpointError(
                        f"{place[0] / tag} holds no average of the weights; leave --train.enable_ema out"
                    )
                self._ema.load_state_dict(shards)
        return state

    def save_hf(self, folder: str, source: str, role: Role = "actor", averaged: bool = False) -> None:
        """Write a model, or the actor's average, as a Hugging Face folder with the tokenizer of `source`.

        The actor's adapters, if it has any, are merged into it, and stand beside it too.
        """
        from ..models.hf_folder import save_hf

        strategy = self._model(role)
        if averaged and self._ema is None:
            raise LearnerError("no average of the actor is kept; --train.enable_ema keeps one")
        tensors = self._whole(strategy, strategy.tensor_specs(), averaged)
        if self._rank == 0:
            save_hf(Path(folder), source, tensors, kind=self._config.models[role].kind)
        if strategy.adapters is not None and not averaged:
            tensors = self._whole(strategy, strategy.adapter_specs())
            if self._rank == 0:
                strategy.adapters.save(Path(folder).with_name("adapter"), source, tensors)

    def close(self) -> None:
        """Free the export buffers."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _score(self, role: Role, batch: Batch) -> "Tensor":
        from ..models.logprobs import action_logprobs
        from ..models.value_model import token_values, values_before_actions

        if role == "reference" and role not in self._models:
            actor = self._model("actor")
            with actor.base_weights():
                return action_logprobs(actor.model, batch, self._device).logprobs_N
        model = self._model(role).model
        if role == "critic":
            return values_before_actions(model, batch, self._device)
        if role == "reward":
            return token_values(model, batch, self._device)
        return action_logprobs(model, batch, self._device).logprobs_N

    def _model(self, role: Role) -> DeepSpeedStrategy:
        if role not in self._models:
            raise LearnerError(f"these ranks hold no {role}, only {', '.join(self._models)}")
        return self._models[role]

    def _trained(self) -> list[tuple[Role, DeepSpeedStrategy]]:
        return [(role, model) for role, model in self._models.items() if self._config.models[role].is_trained]

    def _whole(
        self, strategy: DeepSpeedStrategy, specs: list[TensorSpec], averaged: bool = False
    ) -> "dict[str, Tensor]":
        """Gather tensors one by one, or their averages; rank 0 keeps them in host memory."""
        import torch

        instead = self._ema.whole if averaged and self._ema is not None else None
        tensors: dict[str, Tensor] = {}
        for spec in specs:
            with strategy.gathered([spec.name], instead=instead) as (tensor,):
                if self._rank == 0:
                    tensors[spec.name] = tensor.detach().to("cpu", getattr(torch, spec.dtype), copy=True)
        return tensors

    def _told_to_stop(self) -> bool:
        """Agree with the other ranks, since all must leave a step at the same micro-batch."""
        (stops,) = self._any.reduce_sum([float(self._stop.is_set())])
        return stops > 0


def is_of_disk(error: OSError | RuntimeError) -> bool:
    """Whether a checkpoint could not be written for the disk's sake."""
    if isinstance(error, OSError):
        return not isinstance(error, ConnectionError | TimeoutError)
    return any(words in str(error) for words in _WRITER_ERRORS)
