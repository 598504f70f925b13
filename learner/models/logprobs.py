"""Log-probabilities of a batch's actions under a model, from one packed forward pass.

They are log-softmax(logits / T) with the temperature T of each token's turn: the distribution the engine sampled
from, as long as it sampled from the whole vocabulary.
"""

# N tokens of the batch, M actions, V vocabulary

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...errors import ConfigError
from ..batch import Batch
from .chunked_head import FLOOR, ScoringHead, logit_scale, wide
from .packed_inputs import model_name, packed_inputs, run_packed
from .vision import image_inputs, with_an_image

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Logits widened to float32 at a time: what fits a CPU's cache, and what fills a GPU."""


@dataclass(frozen=True)
class ActionLogprobs:
    """Per token of a batch.

    Attributes:
        logprobs_N: float32, with gradient to the model; 0 off actions.
        entropy_N: float32, of the distribution each action was drawn from, detached unless asked otherwise; 0 off
            actions.
        aux_loss: The load-balancing loss of a mixture of experts, a mean over this batch's tokens, context included;
            0 for an empty batch, None where it was not asked for.
    """

    logprobs_N: Tensor
    entropy_N: Tensor
    aux_loss: Tensor | None = None


def action_logprobs(
    model: torch.nn.Module,
    batch: Batch,
    device: torch.device | str,
    *,
    with_entropy_grad: bool = False,
    with_aux_loss: bool = False,
) -> ActionLogprobs:
    """Run the model over the batch in one row and return its actions' logprobs.

    The logits of all actions are never held at once, as long as what the model does after its output head is known
    (`chunked_head`); a model that does something else to them is told by its first call and gives them in full.

    An empty batch, or one without actions, still runs the model and returns values that carry (zero) gradients
    to all of its parameters, so that ranks of a sharded model stay in step.

    Args:
        model: A causal language model of transformers loaded with `attn_implementation=PACKED`, or an engine
            around one.
        batch: What to score.
        device: Where the model runs.
        with_entropy_grad: Let the entropy keep its gradient.
        with_aux_loss: Ask a mixture of experts for its load-balancing loss.

    Raises:
        ConfigError: The model cannot be run packed, or has no load-balancing loss.
    """
    actions = torch.tensor(batch.is_action.nonzero()[0])
    seen = with_an_image(model, batch)
    keep, num_idle = actions - 1, 0
    if seen is not batch or not len(actions):  # one position is scored that counts nothing, and gradients reach all
        keep, num_idle = torch.cat([keep, torch.tensor([max(seen.num_tokens - 1, 0)])]), 1
    request = _Request(model, seen, keep, with_aux_loss)
    actions = actions.to(device)
    targets_M = torch.nn.functional.pad(_to(batch.token_ids, device).long()[actions], (0, num_idle))
    temperatures_M = torch.nn.functional.pad(_to(batch.temperatures, device)[actions], (0, num_idle), value=1.0)
    scored = _score_in_tiles(request, device, targets_M, temperatures_M, with_entropy_grad)
    if scored is None:
        scored = _score_by_logits(request, device, targets_M, temperatures_M, with_entropy_grad)
    (logprobs_M, entropy_M), aux_loss = scored
    logprobs_M, entropy_M = logprobs_M[: len(actions)], entropy_M[: len(actions)]
    zeros_N = torch.zeros(batch.num_tokens, device=device, dtype=logprobs_M.dtype)
    if aux_loss is not None and batch.num_tokens == 0:
        aux_loss = 0.0 * aux_loss
    return ActionLogprobs(zeros_N.index_put((actions,), logprobs_M), zeros_N.index_put((actions,), entropy_M), aux_loss)


def token_logprobs(
    logits_MV: Tensor, targets_M: Tensor, temperatures_M: Tensor, *, with_entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """Return log-softmax(logits / T) at the targets, and its entropy, both in float32 or wider.

    Rows are widened and normalised chunk by chunk, again in the backward pass: beside the logits there is never
    more than their gradient and one chunk. The caller's logits are left as they are.
    """
    logprobs_M, entropy_M = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        logits_MV, targets_M, temperatures_M, with_entropy_grad
    )
    return logprobs_M, entropy_M


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_MV: Tensor, targets_M: Tensor, temperatures_M: Tensor, with_entropy_grad: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs_M = logits_MV.new_empty(len(logits_MV), dtype=wide(logits_MV))
        entropy_M = torch.empty_like(logprobs_M)
        for rows in _chunks(logits_MV):
            logprobs_CV = _scaled(logits_MV[rows], temperatures_M[rows]).log_softmax(-1)
            logprobs_M[rows] = logprobs_CV.gather(-1, targets_M[rows, None])[:, 0]
            # A token of probability 0 has logprob -inf, and 0 * inf is NaN.
            probs_CV = logprobs_CV.exp()
            logprobs_CV.clamp_(min=FLOOR)
            entropy_M[rows] = -torch.linalg.vecdot(probs_CV, logprobs_CV)
        ctx.save_for_backward(logits_MV, targets_M, temperatures_M, entropy_M)
        ctx.with_entropy_grad = with_entropy_grad
        if not with_entropy_grad:
            ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits_MV, targets_M, temperatures_M, entropy_M = ctx.saved_tensors
        grad_MV = torch.empty_like(logits_MV)
        grad_M, entropy_grad_M = (grad / temperatures_M for grad in grads)
        for rows in _chunks(logits_MV):
            logprobs_CV = _scaled(logits_MV[rows], temperatures_M[rows]).log_softmax(-1)
            grad_CV = logprobs_CV.exp()
            weights_CV = grad_M[rows, None]
            if ctx.with_entropy_grad:
                logprobs_CV.clamp_(min=FLOOR).add_(entropy_M[rows, None])
                weights_CV = logprobs_CV.mul_(entropy_grad_M[rows, None]).add_(weights_CV)
            grad_CV.mul_(-weights_CV).scatter_add_(-1, targets_M[rows, None], grad_M[rows, None])
            grad_MV[rows] = grad_CV
        return grad_MV, None, None, None


_gives_logits: "weakref.WeakSet[torch.nn.Module]" = weakref.WeakSet()
"""Models that do to their logits what `LogitScale` does not know."""


@dataclass(frozen=True)
class _Request:
    model: torch.nn.Module
    batch: Batch
    keep: Tensor  # positions whose next token is wanted
    with_aux_loss: bool


_Scored = tuple[tuple[Tensor, Tensor], Tensor | None]  # logprobs and entropy [M]; load-balancing loss


def _score_in_tiles(
    request: _Request, device: torch.device | str, targets_M: Tensor, temperatures_M: Tensor, with_entropy_grad: bool
) -> _Scored | None:
    """Score inside the model's output head; None where that would not be the model's own distribution."""
    module = _unwrapped(request.model)
    head = module.get_output_embeddings()
    if type(head) is not torch.nn.Linear or module in _gives_logits:
        return None
    scale = logit_scale(module.config)
    with ScoringHead(head, scale, targets_M, temperatures_M, with_entropy_grad=with_entropy_grad) as scoring:
        output = _run(request, device)
    _check_positions(request, scoring.num_positions)
    if scoring.scored is None or not scoring.is_exact(output.logits):
        _gives_logits.add(module)
        return None
    return scoring.scored, _aux_loss(request, output)


def _score_by_logits(
    request: _Request, device: torch.device | str, targets_M: Tensor, temperatures_M: Tensor, with_entropy_grad: bool
) -> _Scored:
    output = _run(request, device)
    logits_MV = output.logits.squeeze(0)  # a view backward too, where [0] would make a copy
    _check_positions(request, len(logits_MV))
    scored = token_logprobs(logits_MV, targets_M, temperatures_M, with_entropy_grad=with_entropy_grad)
    return scored, _aux_loss(request, output)


def _run(request: _Request, device: torch.device | str) -> Any:
    """Call the model on the batch in one row, keeping some positions."""
    inputs = packed_inputs(request.batch, device) | image_inputs(request.model, request.batch, device)
    inputs["logits_to_keep"] = request.keep.to(device)
    if request.with_aux_loss:
        inputs["output_router_logits"] = True
    return run_packed(request.model, inputs)


def _check_positions(request: _Request, count: int | None) -> None:
    if count != len(request.keep):
        raise ConfigError(
            f"{model_name(request.model)} was asked for logits at {len(request.keep)} positions (logits_to_keep) "
            f"and gave {count}"
        )


def _aux_loss(request: _Request, output: Any) -> Tensor | None:
    if not request.with_aux_loss:
        return None
    aux_loss: Tensor | None = getattr(output, "aux_loss", None)
    if aux_loss is None:
        raise ConfigError(f"{model_name(request.model)} has no load-balancing loss; use --actor.aux_loss_coef 0")
    return aux_loss


def _unwrapped(model: torch.nn.Module) -> Any:
    return getattr(model, "module", model)


def _chunks(logits_MV: Tensor) -> list[slice]:
    elements = CHUNK_ELEMENTS.get(logits_MV.device.type, CHUNK_ELEMENTS["cuda"])
    rows = max(1, elements // logits_MV.shape[-1])
    return [slice(start, start + rows) for start in range(0, len(logits_MV), rows)]


def _scaled(logits_CV: Tensor, temperatures_C: Tensor) -> Tensor:
    return logits_CV.to(wide(logits_CV)) / temperatures_C[:, None]


def _to(array: Any, device: torch.device | str) -> Tensor:  # Any: numpy arrays of any dtype
    return torch.tensor(array, device=device)  # a copy: arrays out of Ray's store are read-only
