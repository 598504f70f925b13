"""A batch as one packed row, as models loaded with `attn_implementation=PACKED` take it."""

from typing import Any

import torch

from ...errors import ConfigError
from ..batch import Batch
from .attention import packed_calls


def packed_inputs(batch: Batch, device: torch.device | str) -> dict[str, Any]:
    """Return the keyword arguments of a forward pass; an empty batch is run as one token."""
    is_empty = batch.num_tokens == 0
    token_ids = torch.zeros(1, dtype=torch.int64) if is_empty else torch.tensor(batch.token_ids, dtype=torch.int64)
    starts = torch.tensor([0, 1]) if is_empty else torch.tensor(batch.starts)
    lengths = starts.diff()
    positions = torch.arange(len(token_ids)) - starts[:-1].repeat_interleave(lengths)
    cu_seq_lens, longest = starts.to(device, torch.int32), int(lengths.max())
    return {
        "input_ids": token_ids[None].to(device),
        "position_ids": positions[None].to(device),
        "use_cache": False,
        "cu_seq_lens_q": cu_seq_lens,
        "cu_seq_lens_k": cu_seq_lens,
        "max_length_q": longest,
        "max_length_k": longest,
    }


def run_packed(model: torch.nn.Module, inputs: dict[str, Any]) -> Any:  # Any: each model has its own output
    """Call the model, and see that each of its layers really kept the sequences apart.

    Raises:
        ConfigError: The model's attention is not the packed one.
    """
    calls = packed_calls()
    output = model(**inputs)
    config: Any = getattr(model, "module", model).config  # Any: transformers' configurations are open
    wanted, ran = config.get_text_config().num_hidden_layers, packed_calls() - calls
    if ran < wanted:
        raise ConfigError(
            f"{model_name(model)} has {wanted} layers, but packed attention ran {ran} times, so its tokens would see "
            f"their neighbours; load it with attn_implementation='turngym_packed'"
        )
    return output


def model_name(model: torch.nn.Module) -> str:
    """Return the name of the model's class, or of the class it is wrapped in."""
    return type(getattr(model, "module", model)).__name__
