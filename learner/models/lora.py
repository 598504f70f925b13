"""Low-rank adapters (LoRA, arXiv:2106.09685): added to a model, switched off for the reference, merged for the engines.

A merged tensor is W + scale * B @ A, computed in float32 and rounded once, to the dtype in which it travels. All
functions take whole tensors: what is sharded is gathered by the caller.
"""

# O outputs and I inputs of a layer, R rank

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConfigError, MissingPackageError
from ...executors.engines.weights import TensorSpec
from ..options import DsOptions, LoraOptions
from .vision import EYES, has_eyes

ADAPTER = "default"  # peft's name for the only one
SAVED_PREFIX = "base_model.model."  # of every name in peft's files
LARGEST_SERVED = 512  # rank that vLLM has places for
PERTURBATION = 0.5  # of a layer's weights, by Frobenius norm


@dataclass(frozen=True)
class AdaptedLayer:
    """One linear layer with an adapter.

    Attributes:
        name: Of the layer, as the base model has it.
        base, a, b: Names of the parameters W [O, I], A [R, I] and B [O, R].
        scale: What B @ A is multiplied with.
    """

    name: str
    base: str
    a: str
    b: str
    scale: float


def check_lora(ds: DsOptions) -> None:
    """Refuse options that cannot be meant.

    Raises:
        ConfigError: Rank or dropout are out of range, or 4 bits are asked for where they cannot be.
    """
    lora = ds.lora
    if lora.rank < 0:
        raise ConfigError(f"--ds.lora.rank wants 0 (none) or more, got {lora.rank}")
    if lora.sync == "adapter" and lora.rank > LARGEST_SERVED:
        raise ConfigError(
            f"--ds.lora.sync adapter serves ranks up to {LARGEST_SERVED}, and --ds.lora.rank is {lora.rank}; "
            "use --ds.lora.sync merged"
        )
    if not 0 <= lora.dropout < 1:
        raise ConfigError(f"--ds.lora.dropout wants a share from 0 to below 1, got {lora.dropout}")
    if not lora.target_modules:
        raise ConfigError("--ds.lora.target_modules is empty; name layers, or all-linear")
    if ds.load_in_4bit and not lora.rank:
        raise ConfigError(
            "--ds.load_in_4bit freezes the weights, so it needs adapters: give --ds.lora.rank, such as 16"
        )
    if ds.load_in_4bit and lora.sync == "adapter":
        raise ConfigError(
            "--ds.load_in_4bit needs --ds.lora.sync merged: engines would put the adapters onto weights that were "
            "never rounded to 4 bits, which is another policy than the one that learns"
        )


def describe(lora: LoraOptions) -> str:
    """Return what two runs must share for one to read the other's adapters."""
    return f"rank {lora.rank}, alpha {lora.alpha}, on {' '.join(lora.target_modules)}" if lora.rank else "none"


def quantization(dtype: torch.dtype) -> Any:  # Any: a configuration of transformers
    """Return how weights are held in 4 bits: NF4, stored as `dtype` so that they can be sharded beside the rest."""
    require_bitsandbytes()
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_quant_storage=dtype,
    )


def add_lora(model: nn.Module, options: LoraOptions) -> nn.Module:
    """Put adapters into the model's linear layers and freeze all else; the model stays of its class.

    A visual encoder has none: engines serve adapters of the language model alone. A is random and B zero, so nothing
    changes yet. Adapters have the model's dtype, as engines compute with them; the optimiser keeps its float32 masters
    of them as of any trained parameter.

    Raises:
        ConfigError: No layer has such a name.
    """
    from peft import LoraConfig, inject_adapter_in_model

    targets: str | list[str] = list(options.target_modules)
    if options.target_modules == ("all-linear",):
        targets = "all-linear"
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=targets,
        exclude_modules=EYES if has_eyes(model) else None,
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(config, model, ADAPTER)
    except ValueError as error:
        raise ConfigError(f"--ds.lora.target_modules {' '.join(options.target_modules)}: {error}") from error
    module: Any  # bitsandbytes' own attributes
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # It would lay 4-bit weights out anew in place, which neither shards nor merging would know.
            module.support_avx512bf16_for_cpu = False
    Adapters(model)  # refuses what could not be merged, before anything is trained
    return model


def require_bitsandbytes() -> None:
    """Refuse 4 bits where nothing can hold weights so.

    Raises:
        MissingPackageError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingPackageError("--ds.load_in_4bit needs bitsandbytes: pip install 'turngym[qlora]'") from error


@contextmanager
def disabled_adapters(model: nn.Module) -> Iterator[None]:
    """Let the model compute with its base weights alone, exactly as if it never had adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class Adapters:
    """The adapters of a model, by name: what its merged tensors are made of, and how.

    Raises:
        ConfigError: An adapter sits on what is not a linear layer, or on one whose weights are tied to another's.
    """

    def __init__(self, model: nn.Module) -> None:
        from peft.tuners.lora import LoraLayer

        self._config: Any = model.peft_config[ADAPTER]  # type: ignore[index]  # Any: peft's types are loose
        names = {name for name, _ in model.named_parameters()}
        self.layers: dict[str, AdaptedLayer] = {}  # by the name of the merged tensor
        for name, module in model.named_modules():
            if not isinstance(module, LoraLayer):
                continue
            if not isinstance(module.get_base_layer(), nn.Linear):
                raise ConfigError(
                    f"--ds.lora.target_modules names {name!r}, a {type(module.get_base_layer()).__name__}; "
                    "only linear layers can have adapters"
                )
            base, a, b = (f"{name}.{part}.weight" for part in ("base_layer", f"lora_A.{ADAPTER}", f"lora_B.{ADAPTER}"))
            if base not in names:
                raise ConfigError(
                    f"--ds.lora.target_modules names {name!r}, whose weights are tied to another layer's; leave it out"
                )
            self.layers[f"{name}.weight"] = AdaptedLayer(name, base, a, b, float(module.scaling[ADAPTER]))
        self._before: dict[str, Tensor] = {}  # each B that is perturbed
        self._parameter_of = {_merged_name(name): name for name in names if not _is_adapter(name)}
        self._saved = {
            f"{SAVED_PREFIX}{layer.name}.lora_{which}.weight": parameter
            for layer in self.layers.values()
            for which, parameter in (("A", layer.a), ("B", layer.b))
        }

    def merged_specs(self, parameters: Mapping[str, nn.Parameter]) -> list[TensorSpec]:
        """Return the base model's tensors as it names them, in its order."""
        return [_spec(_merged_name(name), parameter) for name, parameter in parameters.items() if not _is_adapter(name)]

    def adapter_specs(self, parameters: Mapping[str, nn.Parameter]) -> list[TensorSpec]:
        """Return the adapters' tensors, named as peft's files have them."""
        return [_spec(name, parameters[parameter]) for name, parameter in self._saved.items()]

    def parts(self, name: str) -> list[str]:
        """Return the parameters that a merged tensor or one of an adapter is made of."""
        if name in self._saved:
            return [self._saved[name]]
        layer = self.layers.get(name)
        return [self._parameter_of[name]] if layer is None else [layer.base, layer.a, layer.b]

    def merge(self, name: str, gathered: Mapping[str, Tensor]) -> Tensor:
        """Return a whole tensor, float32 where an adapter went into it; `gathered` holds its parts, whole."""
        base, *factors = (gathered[part] for part in self.parts(name))
        weight = _dequantized(base)
        if not factors:
            return weight
        a_RI, b_OR = factors
        return torch.addmm(weight.float(), b_OR.detach().float(), a_RI.detach().float(), alpha=self.layers[name].scale)

    def perturbed_parts(self, parameters: Mapping[str, nn.Parameter]) -> Iterator[list[str]]:
        """Yield what `perturb` wants gathered at a time; together these are all parameters but each A."""
        adapted = {layer.base for layer in self.layers.values()}
        yield from ([name] for name in parameters if not _is_adapter(name) and name not in adapted)
        yield from ([layer.base, layer.a, layer.b] for layer in self.layers.values())

    def perturb(self, names: Sequence[str], gathered: Mapping[str, Tensor], *, halves: bool) -> None:
        """Change these parameters strongly, in place; `restore` undoes that exactly.

        B is zero at first, and would show nothing: it becomes noise that adds half of the layer's own norm.

        Args:
            names: One item of `perturbed_parts`.
            gathered: The parameters, whole.
            halves: Whether the base weights are halved too; those in 4 bits never are.
        """
        base, *factors = (gathered[name] for name in names)
        if halves and not _is_quantized(base):
            base.detach().mul_(0.5)
        if not factors:
            return
        a_RI, b_OR = (factor.detach() for factor in factors)
        layer = self.layers[_merged_name(names[0])]
        self._before[layer.b] = b_OR.cpu().clone()
        generator = torch.Generator().manual_seed(zlib.crc32(layer.name.encode()))
        noise_OR = torch.randn(b_OR.shape, generator=generator).to(b_OR.device)
        added = (noise_OR @ a_RI.float()).norm() * layer.scale
        b_OR.copy_(noise_OR * (PERTURBATION * _dequantized(base).float().norm() / added))

    def restore(self, names: Sequence[str], gathered: Mapping[str, Tensor], *, halves: bool) -> None:
        """Undo `perturb` of the same parameters."""
        base, *factors = (gathered[name] for name in names)
        if halves and not _is_quantized(base):
            base.detach().mul_(2.0)
        if factors:
            factors[1].detach().copy_(self._before.pop(names[2]))

    def save(self, folder: Path, base_model: str, tensors: Mapping[str, Tensor]) -> None:
        """Write the adapters, named as in `adapter_specs`, as a folder that peft loads onto `base_model`."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        settings = self._config.to_dict() | {"base_model_name_or_path": base_model, "inference_mode": True}
        (folder / "adapter_config.json").write_text(json.dumps(_plain(settings), indent=2, sort_keys=True))
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def _merged_name(parameter: str) -> str:
    return parameter.replace(".base_layer.", ".")


def _is_adapter(parameter: str) -> bool:
    return f".lora_A.{ADAPTER}." in parameter or f".lora_B.{ADAPTER}." in parameter


def _is_quantized(parameter: Tensor) -> bool:
    return getattr(parameter, "quant_state", None) is not None


def _spec(name: str, parameter: Tensor) -> TensorSpec:
    if _is_quantized(parameter):
        state: Any = parameter.quant_state  # type: ignore[attr-defined]  # Any: bitsandbytes' own
        return TensorSpec(name, str(state.dtype).removeprefix("torch."), tuple(state.shape))
    shape = getattr(parameter, "ds_shape", parameter.shape)  # what ZeRO has sharded is empty outside a gathering
    return TensorSpec(name, str(parameter.dtype).removeprefix("torch."), tuple(shape))


def _dequantized(parameter: Tensor) -> Tensor:
    if not _is_quantized(parameter):
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit  # pyright: ignore[reportMissingImports]

    weight: Tensor = dequantize_4bit(parameter.data, parameter.quant_state)  # type: ignore[attr-defined]
    return weight


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return peft's settings as JSON can hold them; its sets have no order."""
    return {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
