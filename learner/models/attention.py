"""Attention over sequences packed in one row, each seeing only itself: exact, whoever its neighbours are.

Registered with transformers as "turngym_packed"; where the sequences begin comes as the forward keyword arguments
`cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, which models hand down to each attention layer.
What cannot be computed exactly is refused.
"""

# T tokens in the row, H query heads, K key-value heads, D head size

import inspect
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from ...errors import ConfigError
from .buckets import bucketed_attention, lay_out

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PACKED = "turngym_packed"
"""To be given as `attn_implementation` when the model is loaded."""

ADVICE = ", so this model cannot be trained packed"

_witness = threading.local()


def packed_attention(
    module: torch.nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    value_1KTD: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,  # Any: each model passes what it likes; `_refuse` looks for what changes the result
) -> tuple[Tensor, None]:
    """Attend causally within each sequence; the output is [1, T, H, D] as transformers wants it."""
    name = type(module).__name__
    if cu_seq_lens_q is None or max_length_q is None:
        raise ConfigError(
            f"no cu_seq_lens_q and max_length_q reached {name}'s attention: if the model's forward was given them, "
            f"it does not hand them down{ADVICE}"
        )
    _refuse(name, module, query_1HTD, key_1KTD, attention_mask, dropout, kwargs)
    _witness.calls = packed_calls() + 1
    query_THD, key_TKD, value_TKD = (x[0].transpose(0, 1) for x in (query_1HTD, key_1KTD, value_1KTD))
    dtype = query_THD.dtype
    if torch.is_autocast_enabled(query_THD.device.type):
        dtype = torch.get_autocast_dtype(query_THD.device.type)
    query_THD, key_TKD, value_TKD = (x.to(dtype) for x in (query_THD, key_TKD, value_TKD))
    window = sliding_window if sliding_window is not None and sliding_window < max_length_q else None
    if _flash_can(query_THD, value_TKD):
        output_THD = _flash(query_THD, key_TKD, value_TKD, cu_seq_lens_q, max_length_q, scaling, window)
    else:
        layout = lay_out(tuple(cu_seq_lens_q.tolist()), query_THD.device)
        with torch.autocast(query_THD.device.type, enabled=False):
            output_THD = bucketed_attention(query_THD, key_TKD, value_TKD, layout, scaling, window)
    return output_THD[None], None


AttentionInterface.register(PACKED, packed_attention)


def packed_calls() -> int:
    """Return how often packed attention ran in this thread, to see that a model really used it."""
    calls: int = getattr(_witness, "calls", 0)
    return calls


def check_packable(config: "PretrainedConfig", max_tokens: int) -> None:
    """Refuse a model whose packed forward pass would differ from that of each sequence alone.

    Args:
        config: The model's, of transformers.
        max_tokens: Longest sequence of the run.

    Raises:
        ConfigError: It names what stands in the way.
    """
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    obstacles = {f"layers of the kind {', '.join(sorted(kinds))}": bool(kinds)}
    obstacles["attention logit softcapping"] = bool(getattr(text, "attn_logit_softcapping", None))
    obstacles["attention dropout (set attention_dropout to 0)"] = bool(getattr(text, "attention_dropout", None))
    obstacles["attention that is not causal"] = bool(
        getattr(text, "use_bidirectional_attention", None) or getattr(text, "is_causal", True) is False
    )
    obstacles["a chunked attention"] = bool(getattr(text, "attention_chunk_size", None))
    for rope in _ropes(text):
        # These choose their frequencies by the longest sequence of the batch, so neighbours would matter.
        kind, limit = rope.get("rope_type"), rope.get("original_max_position_embeddings")
        limit = limit or getattr(text, "original_max_position_embeddings", None) or text.max_position_embeddings
        changes = kind in ("dynamic", "longrope") and max_tokens > limit
        obstacles[f"{kind} rotary embeddings beyond {limit} tokens (longest sequence: {max_tokens})"] = changes
    found = [obstacle for obstacle, stands in obstacles.items() if stands]
    if found:
        raise ConfigError(f"model type {text.model_type!r} has {'; and '.join(found)}{ADVICE}")


def check_context(config: "PretrainedConfig", max_tokens: int) -> None:
    """Refuse a longer context than the model was made for; scaled rotary embeddings are the engine's to judge.

    Raises:
        ConfigError: It names the longest context.
    """
    text = config.get_text_config()
    positions: int | None = getattr(text, "max_position_embeddings", None)
    is_scaled = any(rope.get("rope_type", "default") != "default" for rope in _ropes(text))
    if positions is not None and max_tokens > positions and not is_scaled:
        raise ConfigError(
            f"--data.max_len is {max_tokens}, and the model was made for {positions} tokens: "
            f"give --data.max_len {positions} or less"
        )


def _ropes(text: "PretrainedConfig") -> list[dict[str, Any]]:
    """Return the rotary parameters: one set, or one for each kind of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return [parameters] if "rope_type" in parameters else [p for p in parameters.values() if isinstance(p, dict)]


def _refuse(
    name: str,
    module: torch.nn.Module,
    query_1HTD: Tensor,
    key_1KTD: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> None:
    is_causal = kwargs.get("is_causal")
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    obstacles = {
        "a softcap": kwargs.get("softcap") is not None,
        "attention sinks": kwargs.get("s_aux") is not None,
        "a position bias": kwargs.get("position_bias") is not None,
        "a mask of its own": attention_mask is not None,
        "attention that is not causal": not is_causal,
        "dropout (set attention_dropout to 0)": dropout > 0,
        "more than one row": len(query_1HTD) != 1,
        "a cache of keys (call it with use_cache=False)": query_1HTD.shape[2] != key_1KTD.shape[2],
    }
    found = [obstacle for obstacle, stands in obstacles.items() if stands]
    if found:
        raise ConfigError(f"{name} asks packed attention for {' and '.join(found)}{ADVICE}")


def _flash_can(query: Tensor, value: Tensor) -> bool:
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and is_half and query.shape[-1] == value.shape[-1] <= 256


def _flash(
    query_THD: Tensor,
    key_TKD: Tensor,
    value_TKD: Tensor,
    cu_seq_lens: Tensor,
    max_length: int,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Run FlashAttention's kernel for variable lengths that torch brings; `window` counts the token itself."""
    from torch.nn.attention.varlen import varlen_attn

    group = query_THD.shape[1] // key_TKD.shape[1]
    options: dict[str, Any] = {}
    if group > 1:
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:  # torch 2.11 and newer
            options["enable_gqa"] = True
        else:
            key_TKD, value_TKD = (x.repeat_interleave(group, 1) for x in (key_TKD, value_TKD))
    output = varlen_attn(
        query_THD.contiguous(),
        key_TKD.contiguous(),
        value_TKD.contiguous(),
        cu_seq_lens,
        cu_seq_lens,
        max_length,
        max_length,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        **options,
    )
    assert isinstance(output, Tensor)  # a pair only where the log-sum-exp is asked for
    return output
