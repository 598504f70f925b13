"""Log-probabilities of a batch's actions under a model, from one packed forward pass.

They are log-softmax(logits / T) with the temperature T of each token's turn: the distribution the engine sampled
from, as long as it sampled from the whole vocabulary.
"""

# N tokens of the batch, M actions, V vocabulary

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError
from .attention import packed_calls
from .batch import Batch

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits widened to float32 at a time: what fits a CPU's cache, and what fills a GPU."""


@dataclass(frozen=True)
class ActionLogprobs:
    """Per token of a batch.

    Attributes:
        logprobs_N: float32, with gradient to the model; 0 off actions.
        entropy_N: float32, detached, of the distribution each action was drawn from; 0 off actions.
    """

    logprobs_N: Tensor
    entropy_N: Tensor


def action_logprobs(model: torch.nn.Module, batch: Batch, device: torch.device | str) -> ActionLogprobs:
    """Run the model over the batch in one row and return its actions' logprobs.

    An empty batch, or one without actions, still runs the model and returns values that carry (zero) gradients
    to all of its parameters, so that ranks of a sharded model stay in step.

    Args:
        model: A causal language model of transformers loaded with `attn_implementation=PACKED`, or an engine
            around one.
        batch: What to score.
        device: Where the model runs.
    """
    actions = torch.tensor(batch.is_action.nonzero()[0])
    keep = actions - 1 if len(actions) else torch.zeros(1, dtype=torch.int64)
    logits_MV = _packed_logits(model, batch, keep, device)
    actions = actions.to(device)
    targets_M = _to(batch.token_ids, device).long()[actions]
    temperatures_M = _to(batch.temperatures, device)[actions]
    if len(actions) == 0:
        logits_MV = logits_MV[:0]
    logprobs_M, entropy_M = token_logprobs(logits_MV, targets_M, temperatures_M)
    zeros_N = torch.zeros(batch.num_tokens, device=device, dtype=logprobs_M.dtype)
    return ActionLogprobs(zeros_N.index_put((actions,), logprobs_M), zeros_N.index_put((actions,), entropy_M))


def token_logprobs(logits_MV: Tensor, targets_M: Tensor, temperatures_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-softmax(logits / T) at the targets, and the (detached) entropy, both in float32 or wider.

    Rows are widened and normalised chunk by chunk, again in the backward pass: beside the logits there is never
    more than their gradient and one chunk. The caller's logits are left as they are.
    """
    logprobs_M, entropy_M = _TokenLogprobs.apply(logits_MV, targets_M, temperatures_M)  # type: ignore[no-untyped-call]
    return logprobs_M, entropy_M


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, targets_M: Tensor, temperatures_M: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits_MV, targets_M, temperatures_M)
        logprobs_M = logits_MV.new_empty(len(logits_MV), dtype=_wide(logits_MV))
        entropy_M = torch.empty_like(logprobs_M)
        for rows in _chunks(logits_MV):
            logprobs_CV = _scaled(logits_MV[rows], temperatures_M[rows]).log_softmax(-1)
            logprobs_M[rows] = logprobs_CV.gather(-1, targets_M[rows, None])[:, 0]
            # A token of probability 0 has logprob -inf, and 0 * inf is NaN.
            probs_CV = logprobs_CV.exp()
            logprobs_CV.clamp_(min=torch.finfo(logprobs_CV.dtype).min)
            entropy_M[rows] = -torch.linalg.vecdot(probs_CV, logprobs_CV)
        ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits_MV, targets_M, temperatures_M = ctx.saved_tensors
        grad_MV = torch.empty_like(logits_MV)
        scaled_grad_M = grads[0] / temperatures_M
        for rows in _chunks(logits_MV):
            grad_CV = _scaled(logits_MV[rows], temperatures_M[rows]).softmax(-1)
            grad_CV.scatter_add_(-1, targets_M[rows, None], torch.full_like(grad_CV[:, :1], -1))
            grad_MV[rows] = grad_CV.mul_(-scaled_grad_M[rows, None])
        return grad_MV, None, None


def _packed_logits(model: torch.nn.Module, batch: Batch, keep: Tensor, device: torch.device | str) -> Tensor:
    """Return the logits [M, V] at the positions to keep; an empty batch is run as one token."""
    is_empty = batch.num_tokens == 0
    token_ids = torch.zeros(1, dtype=torch.int64) if is_empty else torch.tensor(batch.token_ids, dtype=torch.int64)
    starts = torch.tensor([0, 1]) if is_empty else torch.tensor(batch.starts)
    lengths = starts.diff()
    positions = torch.arange(len(token_ids)) - starts[:-1].repeat_interleave(lengths)
    cu_seq_lens, longest = starts.to(device, torch.int32), int(lengths.max())
    calls = packed_calls()
    output = model(
        input_ids=token_ids[None].to(device),
        position_ids=positions[None].to(device),
        use_cache=False,
        logits_to_keep=keep.to(device),
        cu_seq_lens_q=cu_seq_lens,
        cu_seq_lens_k=cu_seq_lens,
        max_length_q=longest,
        max_length_k=longest,
    )
    _check_used(model, packed_calls() - calls)
    logits_MV: Tensor = output.logits.squeeze(0)  # a view backward too, where [0] would make a copy
    if len(logits_MV) != len(keep):
        raise ConfigError(
            f"{_name(model)} was asked for logits at {len(keep)} positions (logits_to_keep) and gave {len(logits_MV)}"
        )
    return logits_MV


def _check_used(model: torch.nn.Module, calls: int) -> None:
    config: Any = getattr(model, "module", model).config  # Any: transformers' configurations are open
    wanted = config.get_text_config().num_hidden_layers
    if calls < wanted:
        raise ConfigError(
            f"{_name(model)} has {wanted} layers, but packed attention ran {calls} times, so its tokens would see "
            f"their neighbours; load it with attn_implementation='turngym_packed'"
        )


def _name(model: torch.nn.Module) -> str:
    return type(getattr(model, "module", model)).__name__


def _chunks(logits_MV: Tensor) -> list[slice]:
    elements = CHUNK_ELEMENTS.get(logits_MV.device.type, CHUNK_ELEMENTS["cuda"])
    rows = max(1, elements // logits_MV.shape[-1])
    return [slice(start, start + rows) for start in range(0, len(logits_MV), rows)]


def _scaled(logits_CV: Tensor, temperatures_C: Tensor) -> Tensor:
    return logits_CV.to(_wide(logits_CV)) / temperatures_C[:, None]


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _to(array: Any, device: torch.device | str) -> Tensor:  # Any: numpy arrays of any dtype
    return torch.tensor(array, device=device)  # a copy: arrays out of Ray's store are read-only
