"""Models with one number per token: critics, and reward models, whose last number is the score.

On disk they are sequence classifiers of one label, so that transformers and OpenRLHF read them too.
"""

# N tokens of the batch, H hidden size

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ..batch import Batch
from .packed_inputs import model_name, packed_inputs, run_packed

HEAD = "score"  # what transformers calls the head of its decoder classifiers


def load_value_model(
    path: str,
    *,
    head_prefix: str = HEAD,
    dtype: torch.dtype,
    attention: str,
    new_head: bool = False,
) -> torch.nn.Module:
    """Load a sequence classifier of one label; its forward pass gives a number for each token.

    Args:
        path: A Hugging Face folder or hub name.
        head_prefix: What the checkpoint calls the head.
        dtype: Of the weights.
        attention: An attention of transformers; `PACKED` for packed batches.
        new_head: Take a model without a head, such as a policy, and begin with a head of zeros: every value is 0.

    Raises:
        ConfigError: There is no such model, or it has no head and `new_head` does not allow that, or one of another
            name.
    """
    from transformers import AutoModelForSequenceClassification

    mapping = None if head_prefix == HEAD else {rf"^{head_prefix}\.": f"{HEAD}."}
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            path,
            num_labels=1,
            dtype=dtype,
            attn_implementation=attention,
            key_mapping=mapping,
            output_loading_info=True,
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load a model with a value head from {path!r}: {error}") from error
    if not isinstance(getattr(model, HEAD, None), torch.nn.Linear):
        raise ConfigError(f"{type(model).__name__} ({path!r}) has no linear head {HEAD!r}: use a decoder model")
    if _lacks_head(model, info, path, head_prefix, new_head=new_head):
        with _gathered(model.score.weight):
            torch.nn.init.zeros_(model.score.weight)
    model.config.use_cache = False
    model.__class__ = type(type(model).__name__, (_ValuePerToken, type(model)), {})
    return model  # type: ignore[no-any-return]


def _lacks_head(model: torch.nn.Module, info: Any, path: str, head_prefix: str, *, new_head: bool) -> bool:
    """Whether the head is to begin anew; `info` is what transformers says of the names that it read.

    Raises:
        ConfigError: It may not, or something else is missing, or what is there may be a head of another name.
    """
    missing, kind = set(info["missing_keys"]), type(model).__name__
    if missing - {f"{HEAD}.weight"}:
        raise ConfigError(f"{path!r} lacks weights of {kind}: {', '.join(sorted(missing)[:3])}, ...")
    if missing and not new_head:
        raise ConfigError(
            f"{path!r} has no weights {head_prefix}.weight, so it is no reward model; "
            "if its head has another name, give that as --ds.value_head_prefix"
        )
    # Only what may be a head: a policy may bring deeper parts that no classifier has.
    others = {key.split(".")[0] for key in info["unexpected_keys"] if key.count(".") == 1} - {"lm_head"}
    if missing and others:
        raise ConfigError(
            f"{path!r} has no weights {head_prefix}.weight, and others that no part of {kind} takes: "
            f"{', '.join(sorted(others))}; if one of them is its head, name it as --ds.value_head_prefix"
        )
    return bool(missing)


def check_head(path: str, head_prefix: str) -> None:
    """Refuse a folder without weights of a head, as far as can be told without loading it.

    Raises:
        ConfigError: No file of weights has the head.
    """
    from safetensors import safe_open

    files = sorted(Path(path).glob("*.safetensors"))
    names: set[str] = set()
    for file in files:
        with safe_open(file, "pt") as weights:
            names |= set(weights.keys())
    if files and not names & {f"{head_prefix}.weight", f"{HEAD}.weight"}:
        raise ConfigError(
            f"--reward.model_name_or_path: {path!r} has no weights {head_prefix}.weight, so it is no reward model; "
            "if its head has another name, give that as --ds.value_head_prefix"
        )


class _ValuePerToken(torch.nn.Module):
    """In front of a sequence classifier's class: a number for each token instead of one for the sequence."""

    def forward(self, **inputs: Any) -> Tensor:
        """Return float32 [1, N]; the head's product is taken in float32."""
        hidden_1NH = self.base_model(**inputs).last_hidden_state  # type: ignore[operator]
        values: Tensor = self.score(hidden_1NH).float().squeeze(-1)  # type: ignore[operator]
        return values


def token_values(model: torch.nn.Module, batch: Batch, device: torch.device | str) -> Tensor:
    """Return float32 [N], the model's number after it has read each token, with gradient.

    An empty batch still runs the model and gives an empty result that carries gradients to all of its parameters,
    so that ranks of a sharded model stay in step.
    """
    if any(batch.images):
        raise ConfigError(f"{model_name(model)} scores text only, and a batch holds images; leave this model out")
    values_N: Tensor = run_packed(model, packed_inputs(batch, device))[0]
    return values_N[: batch.num_tokens]


def values_before_actions(model: torch.nn.Module, batch: Batch, device: torch.device | str) -> Tensor:
    """Return float32 [N], at each action the number before it was sampled, 0 elsewhere, with gradient."""
    values_N = token_values(model, batch, device)
    before_N = torch.cat([values_N.new_zeros(1), values_N[:-1]]) if len(values_N) else values_N
    is_action_N = torch.tensor(batch.is_action, device=before_N.device)
    return before_N.where(is_action_N, 0.0) + 0.0 * values_N.sum()


def _gathered(parameter: torch.nn.Parameter) -> Any:  # Any: DeepSpeed has no types
    """Open a parameter for writing, also where ZeRO-3 has sharded it while loading."""
    from contextlib import nullcontext

    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)
