"""How weights travel: named tensors in flat buckets, each with a checksum of its bytes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

# Fletcher's second sum weighs each word by its position; a prime period keeps the products in int64.
_PERIOD = 65_521
_CHUNK_WORDS = 16 * _PERIOD


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of the model as Hugging Face names it: `name`, torch dtype name (`"bfloat16"`), shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(getattr(torch, self.dtype).itemsize)


@dataclass(frozen=True)
class Bucket:
    """Some tensors, one after the other in one buffer that another process can open.

    Attributes:
        tensors: What lies in the buffer, each starting at a multiple of `ALIGNMENT` bytes.
        transport: Which transport opens `handle`: `"shm"` or `"cuda_ipc"`.
        handle: What the transport needs to find the buffer; small and picklable.
        checksum: Of the buffer's bytes, computed where they were written.
    """

    tensors: tuple[TensorSpec, ...]
    transport: str
    handle: Any  # Any: each transport has its own
    checksum: int


ALIGNMENT = 64


def offsets(tensors: Iterable[TensorSpec]) -> tuple[list[int], int]:
    """Return the byte offset of each tensor in its bucket, and the bucket's size."""
    starts, end = [], 0
    for tensor in tensors:
        starts.append(end)
        end += -(-tensor.num_bytes // ALIGNMENT) * ALIGNMENT
    return starts, end


def views(buffer: torch.Tensor, tensors: Iterable[TensorSpec]) -> list[tuple[str, torch.Tensor]]:
    """Return the named tensors that lie in a uint8 buffer, without copying."""
    tensors = list(tensors)
    starts, _ = offsets(tensors)
    return [
        (t.name, buffer[start : start + t.num_bytes].view(getattr(torch, t.dtype)).view(t.shape))
        for t, start in zip(tensors, starts, strict=True)
    ]


def checksum(buffer: torch.Tensor) -> int:
    """Fletcher-like checksum of a uint8 tensor on any device; order matters, equal on CPU and GPU.

    The length must be a multiple of 4 bytes.
    """
    words = buffer.view(torch.int32)
    weights = torch.arange(1, _PERIOD + 1, device=buffer.device, dtype=torch.int64).repeat(16)
    plain = torch.zeros((), dtype=torch.int64, device=buffer.device)
    weighted = torch.zeros((), dtype=torch.int64, device=buffer.device)
    for index, chunk in enumerate(words.split(_CHUNK_WORDS)):
        chunk = chunk.to(torch.int64)
        plain += chunk.sum()
        # The factor tells equal chunks at different places apart; int64 wraps, the same way everywhere.
        weighted += (chunk * weights[: len(chunk)]).sum() * (2 * index + 1)
    return (int(plain) * 1_000_003 + int(weighted)) % (1 << 63)


class WeightSource(Protocol):
    """Where weights come from; the learner implements it by gathering.

    The loop drives it: plan once, then export each bucket, have the engines load it, and go on.
    """

    def plan(self, max_bucket_bytes: int) -> list[tuple[TensorSpec, ...]]:
        """Return the tensors of each bucket, the same on every rank and every time."""
        ...

    def export(self, index: int) -> Bucket:
        """Write bucket `index` where engines can open it; valid until the next export of that index."""
        ...
