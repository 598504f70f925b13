"""Which sequences share a forward pass, and which rank runs it.

All of it is deterministic, and O(n log n) in the number of sequences.
"""

import heapq
from bisect import bisect_left, insort

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigError

MicroBatch = list[int]
"""Indices of the sequences that one forward pass takes; may be empty, and is run all the same."""


def pack(lengths: ArrayLike, max_tokens: int) -> list[MicroBatch]:
    """Split sequences into micro-batches of at most `max_tokens` tokens (best fit, longest first).

    A sequence longer than that goes alone. The fullest micro-batch comes first; within one, sequences keep
    their order.
    """
    if max_tokens < 1:
        raise ConfigError(f"a micro-batch must hold at least 1 token, got {max_tokens}")
    sizes = _sizes(lengths)
    bins: list[MicroBatch] = []
    room: list[tuple[int, int]] = []  # (tokens left, bin), ascending: the first that fits is the tightest
    for index in _longest_first(sizes):
        size = int(sizes[index])
        spot = bisect_left(room, (size, -1))
        if spot < len(room):
            left, chosen = room.pop(spot)
            bins[chosen].append(index)
        else:
            left, chosen = max_tokens, len(bins)
            bins.append([index])
        if left > size:
            insort(room, (left - size, chosen))
    bins.sort(key=lambda micro: (-int(sizes[micro].sum()), micro[0]))
    return [sorted(micro) for micro in bins]


def distribute(lengths: ArrayLike, world_size: int, max_tokens: int) -> list[list[MicroBatch]]:
    """Deal sequences to ranks so that all have about the same tokens; `plan[rank][step]` is a micro-batch.

    Every rank gets the same number of micro-batches, empty ones at the end where it has fewer: the collectives of
    a sharded model need every rank in every forward and backward pass.
    """
    if world_size < 1:
        raise ConfigError(f"at least 1 rank is needed, got {world_size}")
    sizes = _sizes(lengths)
    shares: list[list[int]] = [[] for _ in range(world_size)]
    lightest = [(0, 0, rank) for rank in range(world_size)]  # (tokens, sequences, rank), a heap
    for index in _longest_first(sizes):
        tokens, count, rank = heapq.heappop(lightest)
        shares[rank].append(index)
        heapq.heappush(lightest, (tokens + int(sizes[index]), count + 1, rank))
    plan = [_pack_share(sorted(share), sizes, max_tokens) for share in shares]
    num_steps = max(len(micros) for micros in plan)
    return [micros + [[] for _ in range(num_steps - len(micros))] for micros in plan]


def _pack_share(share: list[int], sizes: NDArray[np.int64], max_tokens: int) -> list[MicroBatch]:
    return [[share[i] for i in micro] for micro in pack(sizes[share], max_tokens)]


def _sizes(lengths: ArrayLike) -> NDArray[np.int64]:
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if (sizes < 1).any():
        raise ConfigError(f"every sequence needs at least 1 token, got lengths {sizes[sizes < 1]}")
    return sizes


def _longest_first(sizes: NDArray[np.int64]) -> list[int]:
    order: list[int] = np.argsort(-sizes, kind="stable").tolist()
    return order
