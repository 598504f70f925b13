"""DeepSpeed ZeRO-3: parameters, gradients and optimiser state sharded over the ranks."""

import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from ...errors import CheckpointError, ConfigError
from ...executors.engines.weights import TensorSpec
from ..models.dtypes import DTYPES, check_trainable
from ..models.lora import Adapters, add_lora, disabled_adapters, quantization
from ..models.value_model import HEAD, load_value_model
from ..models.vision import attention_for, freeze_eyes, policy_class
from ..options import LoraOptions
from .muon import Muon
from .optimizers import OptimizerConfig, is_offloaded, make_optimizer, rate_shares
from .random_state import random_state, restore_random_state


@dataclass(frozen=True)
class DeepSpeedConfig:
    """What a rank is set up with."""

    model: str
    param_dtype: str
    attention: str
    kind: Literal["policy", "value"] = "policy"
    head_prefix: str = HEAD  # of a value model
    new_head: bool = False
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    max_norm: float = 1.0
    is_trained: bool = True
    gradient_checkpointing: bool = False
    offload_params: bool = False
    lora: LoraOptions | None = None  # None trains all weights
    load_in_4bit: bool = False
    freezes_eyes: bool = False  # the visual encoder stays as it is


def init_process_group(rank: int, world_size: int, address: str, port: int, timeout_s: float) -> torch.device:
    """Join the ranks and return this rank's device; must run before any model is made."""
    on_gpu = torch.cuda.is_available()
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK="0",  # each rank sees only its own device
        LOCAL_SIZE="1",
        CROSS_RANK="0",
        CROSS_SIZE="1",
        MASTER_ADDR=address,
        MASTER_PORT=str(port),
    )
    if not on_gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    if not on_gpu:
        _switch_off_shm_op()
    else:
        torch.cuda.set_device(0)
    deepspeed.init_distributed(
        "nccl" if on_gpu else "gloo", verbose=False, timeout=datetime.timedelta(seconds=timeout_s)
    )
    return torch.device("cuda", 0) if on_gpu else torch.device("cpu")


class DeepSpeedStrategy:
    """One rank of a ZeRO-3 model; see `Strategy`."""

    def __init__(self, config: DeepSpeedConfig, device: torch.device) -> None:
        import deepspeed
        import torch.distributed as dist
        from transformers.integrations import HfDeepSpeedConfig

        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.device = device
        check_trainable(config.param_dtype)
        self._is_scaled = config.param_dtype == "fp16"
        settings = _settings(config, self.world_size, device)
        hf_config = HfDeepSpeedConfig(settings)  # from_pretrained shards while it loads, as long as this lives
        model = _load(config)
        del hf_config
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if config.lora is not None:
            add_lora(model, config.lora)
        optimizer = None
        if config.is_trained:
            optimizer = make_optimizer(config.optimizer, model, device)
            self._rate_shares = rate_shares(optimizer)
        # The engine gathers, shards and reduces. Any: DeepSpeed has no types.
        self._engine: Any
        self._engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        if isinstance(optimizer, Muon):
            optimizer.attach(self._engine.optimizer, device)
        self._engine.train(config.is_trained)
        self._parameters = dict(self._engine.module.named_parameters())
        self.adapters = None if config.lora is None else Adapters(self._engine.module)
        self._exports_adapters = config.lora is not None and config.lora.sync == "adapter"

    @property
    def model(self) -> torch.nn.Module:
        """The DeepSpeed engine, which is called like the model it wraps."""
        return self._engine  # type: ignore[no-any-return]

    def accumulate(self, loss: torch.Tensor, *, is_last: bool) -> None:
        """Run backward; DeepSpeed averages over ranks, so the loss is scaled up to make it a sum."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self.world_size, scale_wrt_gas=False)
        if not is_last:
            self._engine.step()  # counts the micro-batch; parameters move only at the boundary

    def step(self, lr: float) -> float | None:
        """Take one optimiser step at this learning rate, if the loss scale of fp16 fits the gradients."""
        for group, share in zip(self._engine.optimizer.param_groups, self._rate_shares, strict=True):
            group["lr"] = lr * share
        self._engine.step()
        if self._is_scaled and self._engine.optimizer.overflow:
            return None  # DeepSpeed has lowered the scale
        return float(self._engine.get_global_grad_norm())

    def reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sum in fp64 over ranks."""
        import torch.distributed as dist

        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        return totals.tolist()

    def tensor_specs(self) -> list[TensorSpec]:
        """Full shapes, read from ZeRO's records without gathering; with adapters those of the merged model."""
        if self.adapters is not None:
            return self.adapters.merged_specs(self._parameters)
        return [
            TensorSpec(name, str(p.dtype).removeprefix("torch."), tuple(p.ds_shape))
            for name, p in self._parameters.items()
        ]

    @contextmanager
    def gathered(
        self,
        names: Sequence[str],
        *,
        is_changed: bool = False,
        instead: Callable[[str], torch.Tensor | None] | None = None,
    ) -> Iterator[list[torch.Tensor]]:
        """Gather on all ranks; with `is_changed`, what rank 0 wrote into the tensors is scattered back."""
        import deepspeed

        adapters = self.adapters
        parts = list(names) if adapters is None else [part for n in names for part in adapters.parts(n)]
        parameters = {part: self._parameters[part] for part in parts}
        with deepspeed.zero.GatheredParameters(list(parameters.values()), modifier_rank=0 if is_changed else None):
            tensors = {part: _or(instead, part, parameter.data) for part, parameter in parameters.items()}
            if adapters is None:
                yield list(tensors.values())
            else:
                # What is held in 4 bits is known by its parameter, so that only what stands in for one is replaced.
                yield [adapters.merge(name, parameters if instead is None else tensors) for name in names]

    def export_specs(self) -> list[TensorSpec]:
        """Return what engines get: all tensors, or those of the adapters alone."""
        if self._exports_adapters:
            return self.adapter_specs()
        return self.tensor_specs()

    def adapter_specs(self) -> list[TensorSpec]:
        """Return name, dtype and full shape of the adapters' tensors, as peft's files name them."""
        return [] if self.adapters is None else self.adapters.adapter_specs(self._parameters)

    def base_weights(self) -> AbstractContextManager[None]:
        """Let the model compute without its adapters while the context is open."""
        return disabled_adapters(self._engine.module)

    def perturb_adapters(self, *, undo: bool) -> None:
        """Change strongly what engines get of a model with adapters, or undo that exactly."""
        import deepspeed

        assert self.adapters is not None
        change = self.adapters.restore if undo else self.adapters.perturb
        for names in self.adapters.perturbed_parts(self._parameters):
            parameters = {name: self._parameters[name] for name in names}
            with deepspeed.zero.GatheredParameters(list(parameters.values()), modifier_rank=0):
                change(names, parameters, halves=not self._exports_adapters)

    def master_shards(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of each flat fp32 parameter, padded to equal parts."""
        from deepspeed.utils import safe_get_local_fp32_param

        return {name: safe_get_local_fp32_param(p) for name, p in self._parameters.items() if p.requires_grad}

    def whole(self, name: str, shard: torch.Tensor) -> torch.Tensor:
        """Gather the flat parts and cut off the padding."""
        import torch.distributed as dist

        parts = [torch.empty_like(shard) for _ in range(self.world_size)]
        dist.all_gather(parts, shard.contiguous())
        parameter = self._parameters[name]
        return torch.cat(parts)[: parameter.ds_numel].view(tuple(parameter.ds_shape))

    def save(self, folder: Path, tag: str, state: dict[str, Any]) -> None:
        """Write this rank's shards, with `state` and the random state beside them."""
        client_state = {"turngym": state, "random": random_state(self.device)}
        # With adapters most weights never change, and come from where they came from at first.
        frozen = {} if self.adapters is None else {"exclude_frozen_parameters": True}
        self._engine.save_checkpoint(str(folder), tag=tag, client_state=client_state, **frozen)

    def load(self, folder: Path, tag: str) -> dict[str, Any]:
        """Read this rank's shards; the number of ranks must be the one that wrote them."""
        path, client_state = self._engine.load_checkpoint(
            str(folder), tag=tag, load_module_strict=self.adapters is None
        )
        if path is None or "turngym" not in client_state:
            raise CheckpointError(f"{folder / tag} is not a checkpoint of TurnGym, or of another number of ranks")
        restore_random_state(client_state["random"], self.device)
        return client_state["turngym"]  # type: ignore[no-any-return]


def _or(instead: Callable[[str], torch.Tensor | None] | None, name: str, tensor: torch.Tensor) -> torch.Tensor:
    other = None if instead is None else instead(name)
    return tensor if other is None else other


def _load(config: DeepSpeedConfig) -> Any:  # Any: transformers' models are open
    from transformers import AutoConfig

    dtype = DTYPES[config.param_dtype]
    if config.kind == "value":
        return load_value_model(
            config.model,
            head_prefix=config.head_prefix,
            dtype=dtype,
            attention=config.attention,
            new_head=config.new_head,
        )
    try:
        architecture = AutoConfig.from_pretrained(config.model)
        model = policy_class(architecture).from_pretrained(
            config.model,
            dtype=dtype,
            attn_implementation=attention_for(architecture, config.attention),
            quantization_config=quantization(dtype) if config.load_in_4bit else None,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load a causal language model from {config.model!r}: {error}") from error
    model.config.use_cache = False
    if config.freezes_eyes:
        freeze_eyes(model)
    return model


def _switch_off_shm_op() -> None:
    """Keep DeepSpeed from compiling a shared-memory all-reduce, which takes half a minute and a C++ compiler."""
    import deepspeed.ops
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    deepspeed.ops.__compatible_ops__[builder.NAME] = False


def _settings(config: DeepSpeedConfig, world_size: int, device: torch.device) -> dict[str, Any]:
    # With one rank there is nothing to shard: keep the parameters whole and save the copies.
    keep_whole = {
        "stage3_param_persistence_threshold": 10**12,
        "stage3_model_persistence_threshold": 10**15,
    }
    zero: dict[str, Any] = {
        "stage": 3,
        "contiguous_gradients": True,
        "overlap_comm": torch.cuda.is_available(),
        "stage3_param_persistence_threshold": 10**5,
        "stage3_prefetch_bucket_size": 5 * 10**7,
        "reduce_bucket_size": 5 * 10**7,
    } | (keep_whole if world_size == 1 else {})
    if config.is_trained and is_offloaded(config.optimizer, device):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if config.offload_params:
        zero["offload_param"] = {"device": "cpu"}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "data_types": {"grad_accum_dtype": "fp32"},
    }
    if config.is_trained:
        settings["gradient_clipping"] = config.max_norm
    if config.param_dtype == "bf16":
        settings["bf16"] = {"enabled": True}
    elif config.param_dtype == "fp16":
        settings["fp16"] = {"enabled": True}
    return settings
