"""Logprobs and entropies straight from hidden states: the output head's logits are made tile by tile, never held.

Memory is that of the hidden states and of one tile, in the backward pass too. `ScoringHead` puts this into a model
while it is called, inside the head's own forward, where a sharded backend has gathered the head's weight.
"""

# M positions, H hidden size, V vocabulary, R rows and C columns of a tile

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

TILES = {"cpu": (512, 2048), "cuda": (4096, 16384)}
"""Rows and columns of one tile of logits: what stays in a CPU's cache, and what fills a GPU."""

FLOOR = -1e4
"""A token this far below the likeliest has probability 0 in any dtype; at -inf, 0 * inf would be NaN."""

PROBE = (-60.0, -7.0, -0.5, 0.0, 0.1, 3.0, 25.0)
"""Logits sent along through what the model does after its head, to see that `LogitScale` does the same."""


@dataclass(frozen=True)
class LogitScale:
    """What a model does to its logits after the head: multiply, then cap softly by tanh."""

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits that the model would return."""
        scaled = logits if self.factor == 1.0 else logits * self.factor
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def slope(self, logits: Tensor) -> Tensor | float:
        """Return the derivative, from the logits that `__call__` returned."""
        return self.factor if self.cap is None else self.factor * (1 - (logits / self.cap) ** 2)


def logit_scale(config: Any) -> LogitScale:  # Any: transformers' configurations are open
    """Read from a model's configuration what it does after its head; `ScoringHead.is_exact` tells if this is all."""
    text = config.get_text_config()
    factor = getattr(text, "logit_scale", None) or getattr(text, "lm_head_multiplier", None) or 1.0  # Cohere, Falcon
    factor /= getattr(text, "logits_scaling", None) or 1.0  # Granite
    return LogitScale(float(factor), getattr(text, "final_logit_softcapping", None))  # Gemma


def head_logprobs(
    hidden_MH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_M: Tensor,
    temperatures_M: Tensor,
    scale: LogitScale = LogitScale(),
    *,
    with_entropy_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return log-softmax(logits / T) at the targets and its entropy, [M] each, in float32 or wider.

    Logits are rounded to the head's dtype as the model's own are, and normalised in float32. The entropy is detached
    unless its gradient is asked for.
    """
    logprobs_M, entropy_M = _HeadLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_MH.to(weight_VH.dtype), weight_VH, bias_V, targets_M, temperatures_M, scale, with_entropy_grad
    )
    return logprobs_M, entropy_M


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_M: Tensor,
        temperatures_M: Tensor,
        scale: LogitScale,
        with_entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        temperatures_M = temperatures_M.to(wide(hidden_MH))
        peak_M = torch.full_like(temperatures_M, torch.finfo(temperatures_M.dtype).min)
        mass_M, moment_M, picked_M = (torch.zeros_like(temperatures_M) for _ in range(3))
        fold = _for_device(_fold, hidden_MH)
        for columns in _slices(len(weight_VH), _tile(hidden_MH)[1]):
            for rows in _slices(len(hidden_MH), _tile(hidden_MH)[0]):
                product_RC = _product(hidden_MH[rows], weight_VH, bias_V, columns)
                found_R, places_R = _find(targets_M[rows], columns)
                target_R = scale(product_RC.gather(-1, places_R[:, None])[:, 0].to(picked_M.dtype))
                picked_M[rows] += (target_R / temperatures_M[rows]).where(found_R, 0.0)
                peak_M[rows], mass_M[rows], moment_M[rows] = fold(
                    product_RC, temperatures_M[rows], peak_M[rows], mass_M[rows], moment_M[rows], scale
                )
        entropy_M = mass_M.log() - moment_M / mass_M
        ctx.scale, ctx.with_entropy_grad = scale, with_entropy_grad
        if not with_entropy_grad:
            ctx.mark_non_differentiable(entropy_M)
        ctx.save_for_backward(hidden_MH, weight_VH, bias_V, targets_M, temperatures_M, peak_M, mass_M, entropy_M)
        return picked_M - peak_M - mass_M.log(), entropy_M

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_MH, weight_VH, bias_V, targets_M, temperatures_M, peak_M, mass_M, entropy_M = ctx.saved_tensors
        grad_M, entropy_grad_M = (grad / temperatures_M for grad in grads)
        share_grad_M = -grad_M / mass_M
        entropy_share_M = -entropy_grad_M / mass_M if ctx.with_entropy_grad else None
        offset_M = entropy_M - mass_M.log()
        dtype, pull = peak_M.dtype, _for_device(_pull, hidden_MH)
        hidden_grad_MH = torch.zeros_like(hidden_MH, dtype=dtype)
        weight_grad_VH = torch.empty_like(weight_VH) if ctx.needs_input_grad[1] else None
        bias_grad_V = None if bias_V is None else torch.zeros_like(bias_V, dtype=dtype)
        for columns in _slices(len(weight_VH), _tile(hidden_MH)[1]):
            weight_CH = weight_VH[columns]
            weight_grad_CH = torch.zeros_like(weight_CH, dtype=dtype)
            for rows in _slices(len(hidden_MH), _tile(hidden_MH)[0]):
                product_RC = _product(hidden_MH[rows], weight_VH, bias_V, columns)
                found_R, places_R = _find(targets_M[rows], columns)
                grad_RC = pull(
                    product_RC,
                    places_R.where(found_R, -1),
                    grad_M[rows],
                    temperatures_M[rows],
                    peak_M[rows],
                    share_grad_M[rows],
                    None if entropy_share_M is None else entropy_share_M[rows],
                    offset_M[rows],
                    ctx.scale,
                    hidden_MH.is_cuda,
                )
                if bias_grad_V is not None:
                    bias_grad_V[columns] += grad_RC.sum(0, dtype=dtype)
                hidden_grad_MH[rows] += grad_RC @ weight_CH
                if weight_grad_VH is not None:
                    weight_grad_CH += grad_RC.T @ hidden_MH[rows]
            if weight_grad_VH is not None:
                weight_grad_VH[columns] = weight_grad_CH
        bias_grad = None if bias_grad_V is None or bias_V is None else bias_grad_V.to(bias_V.dtype)
        return hidden_grad_MH.to(hidden_MH.dtype), weight_grad_VH, bias_grad, None, None, None, None


def _fold(
    product_RC: Tensor, temperatures_R: Tensor, peak_R: Tensor, mass_R: Tensor, moment_R: Tensor, scale: LogitScale
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's peak, mass and moment with one more tile of logits counted in."""
    tile_RC = scale(product_RC.to(peak_R.dtype)).div_(temperatures_R[:, None])
    # Mass and moment are those of exp(logit - peak): small differences, which keep their digits.
    new_peak_R = torch.maximum(peak_R, tile_RC.amax(-1))
    fall_R = peak_R - new_peak_R
    fade_R = fall_R.exp()
    fallen_R = torch.where(mass_R > 0, mass_R * fall_R, 0.0)
    tile_RC.sub_(new_peak_R[:, None]).clamp_(min=FLOOR)
    share_RC = tile_RC.exp()
    new_moment_R = fade_R * (moment_R + fallen_R) + torch.linalg.vecdot(share_RC, tile_RC)
    return new_peak_R, fade_R * mass_R + share_RC.sum(-1), new_moment_R


def _pull(
    product_RC: Tensor,
    places_R: Tensor,
    grad_R: Tensor,
    temperatures_R: Tensor,
    peak_R: Tensor,
    share_grad_R: Tensor,
    entropy_share_R: Tensor | None,
    offset_R: Tensor,
    scale: LogitScale,
    is_fused: bool,
) -> Tensor:
    """Return the gradient of one tile of products, in their dtype; a target outside of it has the place -1."""
    logits_RC = scale(product_RC.to(peak_R.dtype))
    slope_RC = scale.slope(logits_RC)
    tile_RC = logits_RC.div_(temperatures_R[:, None]).sub_(peak_R[:, None]).clamp_(min=FLOOR)
    share_RC = tile_RC.exp()
    factor_RC = share_grad_R[:, None]
    if entropy_share_R is not None:
        factor_RC = tile_RC.add_(offset_R[:, None]).mul_(entropy_share_R[:, None]).add_(factor_RC)
    share_RC.mul_(factor_RC)
    if is_fused:  # a comparison is free there, and a scatter would need the tile in memory
        columns_C = torch.arange(share_RC.shape[1], device=share_RC.device)
        share_RC = torch.where(columns_C == places_R[:, None], share_RC + grad_R[:, None], share_RC)
    else:
        added_R = grad_R.where(places_R >= 0, 0.0)
        share_RC.scatter_add_(-1, places_R.clamp(min=0)[:, None], added_R[:, None])
    return share_RC.mul_(slope_RC).to(product_RC.dtype)


@cache
def _compiled(function: Any) -> Any:
    return torch.compile(function, dynamic=True, options={"compile_threads": 1})


def _for_device(function: Any, tensor: Tensor) -> Any:
    """Return the function fused for a GPU: it reads each logit once or twice, where plain PyTorch would ten times."""
    return _compiled(function) if tensor.is_cuda else function


class ScoringHead:
    """While this is open, a model's output head gives logprobs, entropies and a probe where it would give logits.

    The results come out of the head's last hook rather than out of the model, which may scale what its head gives:
    the hooks of a sharded backend have then seen them, and gather the weight again in the backward pass.

    Args:
        head: The model's output head.
        scale: What the model is thought to do after it.
        targets_M: The token at each position.
        temperatures_M: Its temperature.
        with_entropy_grad: Whether the entropy keeps its gradient.
    """

    def __init__(
        self,
        head: torch.nn.Linear,
        scale: LogitScale,
        targets_M: Tensor,
        temperatures_M: Tensor,
        *,
        with_entropy_grad: bool = False,
    ) -> None:
        self._head: Any = head  # Any: its forward is replaced
        self._scale = scale
        self._targets_M, self._temperatures_M = targets_M, temperatures_M
        self._with_entropy_grad = with_entropy_grad
        self.scored: tuple[Tensor, Tensor] | None = None
        self.num_positions: int | None = None

    def __enter__(self) -> "ScoringHead":
        self._before = vars(self._head).get("forward")
        self._head.forward = self._forward
        self._hook = self._head.register_forward_hook(self._keep)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.remove()
        del self._head.forward
        if self._before is not None:
            self._head.forward = self._before

    def is_exact(self, output_1MK: Tensor) -> bool:
        """Whether the model did to the probe what `scale` does, so that the results are its own."""
        probe_P = output_1MK[0, :, 2:].float()
        wanted_P = self._scale(probe_P.new_tensor(PROBE))
        return probe_P.shape[-1] == len(PROBE) and torch.allclose(probe_P, wanted_P.expand_as(probe_P), rtol=1e-4)

    def _forward(self, hidden_1MH: Tensor) -> Tensor:
        hidden_MH = hidden_1MH.reshape(-1, hidden_1MH.shape[-1])
        self.num_positions = len(hidden_MH)
        if self.num_positions != len(self._targets_M):
            return hidden_MH.new_zeros(1, self.num_positions, 2 + len(PROBE))  # the caller sees the number, and refuses
        logprobs_M, entropy_M = head_logprobs(
            hidden_MH,
            self._head.weight,
            self._head.bias,
            self._targets_M,
            self._temperatures_M,
            self._scale,
            with_entropy_grad=self._with_entropy_grad,
        )
        probe_MP = logprobs_M.new_tensor(PROBE).expand(len(hidden_MH), -1)
        return torch.cat([logprobs_M[:, None], entropy_M[:, None], probe_MP], -1)[None]

    def _keep(self, head: torch.nn.Module, inputs: Any, output_1MK: Tensor) -> None:
        self.scored = (output_1MK[0, :, 0], output_1MK[0, :, 1])


def wide(tensor: Tensor) -> torch.dtype:
    """Return the dtype that logits are normalised in: float32, or wider where they are."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _product(hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, columns: slice) -> Tensor:
    weight_HC = weight_VH[columns].T
    return hidden_RH @ weight_HC if bias_V is None else torch.addmm(bias_V[columns], hidden_RH, weight_HC)


def _find(targets_R: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Return which targets lie in these columns, and their places there (any place for the others)."""
    places_R = targets_R - columns.start
    found = (places_R >= 0) & (places_R < columns.stop - columns.start)
    return found, places_R.where(found, 0)


def _tile(hidden: Tensor) -> tuple[int, int]:
    return TILES.get(hidden.device.type, TILES["cuda"])


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
