"""Muon for the matrices of hidden layers and AdamW for all else, over whole parameters or a ZeRO-3 partition of them.

DeepSpeed's own Muon clips the orthogonal update instead of the gradient, which undoes its step size (all singular
values near 1 make a norm of the root of the rank), and fixes the number of iterations; so the update is computed here.
"""

# W ranks, R rows, C columns of a matrix

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic that drives singular values to about 1 (https://kellerjordan.github.io/posts/muon/)."""


def orthogonalize(matrix_RC: Tensor, num_steps: int) -> Tensor:
    """Bring all singular values near 1, and scale by sqrt(R / C) where that is above 1; leading dimensions are a batch.

    On a GPU in bfloat16, as its author has it; elsewhere in float32.
    """
    a, b, c = NEWTON_SCHULZ
    rows, columns = matrix_RC.shape[-2:]
    x = matrix_RC.to(torch.bfloat16 if matrix_RC.is_cuda else torch.float32)
    if rows > columns:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    if rows > columns:
        x = x.mT
    update: Tensor = x.to(matrix_RC.dtype) * math.sqrt(max(1.0, rows / columns))
    return update


class Muon(torch.optim.AdamW):
    """AdamW, and Muon for the groups that have a `momentum`.

    Momentum is `buffer <- momentum * buffer + (1 - momentum) * gradient`, and the update that is orthogonalised mixes
    the gradient and the buffer in the same shares under Nesterov, as in torch.optim.Muon.

    Args:
        groups: Parameter groups; those of Muon carry `momentum`, `nesterov` and `num_steps`.
        betas, eps, weight_decay: AdamW's; the decay is Muon's as well.
        fused: Whether AdamW runs as one kernel.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        fused: bool,
    ) -> None:
        super().__init__(groups, lr=0.0, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)
        self._zero: Any = None

    def attach(self, zero: Any, device: torch.device) -> None:
        """Learn from DeepSpeed's ZeRO-3 optimiser which parameters lie where in the partitions that it will step."""
        self._zero, self._device = zero, device

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        hidden: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            if "momentum" in group:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._step_matrices(parameter, group)
                hidden.append((group, group["params"]))
                group["params"] = []
        try:
            super().step(closure)
        finally:
            for group, parameters in hidden:
                group["params"] = parameters

    def _step_matrices(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW looks for it in whatever it loads
        state["step"] += 1
        buffer = state["momentum"]
        buffer.lerp_(parameter.grad, 1 - group["momentum"])
        update = parameter.grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer.clone()
        if self._zero is None:
            update = orthogonalize(update, group["num_steps"])
        else:
            self._orthogonalize_partition(parameter, update, group["num_steps"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"])

    def _orthogonalize_partition(self, parameter: Tensor, update: Tensor, num_steps: int) -> None:
        """Replace this rank's part of each matrix's update; each rank computes every W-th matrix whole."""
        import torch.distributed as dist

        ranks = self._zero.dp_process_group
        world_size, rank = dist.get_world_size(ranks), dist.get_rank(ranks)
        pieces = list(self._pieces(parameter, update))
        for start in range(0, len(pieces), world_size):
            round_ = pieces[start : start + world_size]
            parts = [piece.to(self._device) for piece, _ in round_]
            mine: list[Tensor] = []
            for owner, part in enumerate(parts):
                gathered = [torch.empty_like(part) for _ in range(world_size)] if owner == rank else None
                dist.gather(part, gathered, group=ranks, group_dst=owner)
                mine = gathered or mine
            if mine:
                shape = round_[rank][1]
                whole = torch.cat(mine)
                whole[: math.prod(shape)] = orthogonalize(whole[: math.prod(shape)].view(shape), num_steps).flatten()
                mine = list(whole.chunk(world_size))
            for owner, (piece, _) in enumerate(round_):
                dist.scatter(parts[owner], mine if owner == rank else None, group=ranks, group_src=owner)
                piece.copy_(parts[owner])

    def _pieces(self, parameter: Tensor, update: Tensor) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
        """Yield this rank's part of each matrix in a partition, and the whole's shape."""
        partitions = self._zero.fp32_partitioned_groups_flat
        number = next(i for i, partition in enumerate(partitions) if partition is parameter)
        for whole in self._zero.fp16_groups[number]:
            _, offset, _ = self._zero.grad_position[self._zero.get_param_id(whole)]
            yield update.narrow(0, offset, whole.partition_numel()), tuple(whole.ds_shape)
