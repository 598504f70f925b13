"""Which sequences share a forward pass, and which rank runs it.

All of it is deterministic, and O(n log n) in the number of sequences.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError

MicroBatch = list[int]
"""Indices of the sequences that one forward pass takes; may be empty, and is run all the same."""


@dataclass(frozen=True)
class MicroBatching:
    """What bounds one forward pass: tokens or sequences, one of the two.

    Attributes:
        max_tokens: Most tokens; a longer sequence goes alone.
        max_sequences: Most sequences, of whatever length.
        attention_length: Length of a sequence at which its attention costs as much as all other layers, about 12 times
            the hidden size; None leaves attention out when ranks are balanced.
    """

    max_tokens: int | None = None
    max_sequences: int | None = None
    attention_length: int | None = None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.max_tokens, self.max_sequences) if limit is not None]
        if len(limits) != 1:
            raise ConfigError(f"a micro-batch is bounded by tokens or by sequences, one of the two, got {self}")
        if limits[0] < 1:
            raise ConfigError(f"a micro-batch must hold at least 1 token or sequence, got {limits[0]}")

    def costs(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the work of each sequence, in tokens without attention."""
        costs = sizes.astype(np.float64)
        return costs if self.attention_length is None else costs + costs**2 / self.attention_length


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
    for index in _largest_first(sizes):
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
    return _fullest_first(bins, sizes)


def pack_evenly(lengths: ArrayLike, max_sequences: int) -> list[MicroBatch]:
    """Split sequences into as few micro-batches of at most `max_sequences` as there can be, about equal in tokens."""
    sizes = _sizes(lengths)
    return _fullest_first(_deal(sizes, -(-len(sizes) // max_sequences), max_sequences), sizes)


def distribute(lengths: ArrayLike, world_size: int, batching: MicroBatching) -> list[list[MicroBatch]]:
    """Deal sequences to ranks so that all have about the same work; `plan[rank][step]` is a micro-batch.

    Every rank gets the same number of micro-batches, empty ones at the end where it has fewer: the collectives of
    a sharded model need every rank in every forward and backward pass.
    """
    if world_size < 1:
        raise ConfigError(f"at least 1 rank is needed, got {world_size}")
    sizes = _sizes(lengths)
    # Where sequences are counted, a rank with more of them would let the others run empty.
    most = None if batching.max_sequences is None else -(-len(sizes) // world_size)
    plan = []
    for share in _deal(batching.costs(sizes), world_size, most):
        if batching.max_tokens is not None:
            micros = pack(sizes[share], batching.max_tokens)
        else:
            assert batching.max_sequences is not None  # one of the two is given
            micros = pack_evenly(sizes[share], batching.max_sequences)
        plan.append([[share[i] for i in micro] for micro in micros])
    num_steps = max(len(micros) for micros in plan)
    return [micros + [[] for _ in range(num_steps - len(micros))] for micros in plan]


def _deal(costs: NDArray[np.number], num_bins: int, most: int | None) -> list[list[int]]:
    """Give each item, the largest first, to the bin with the least so far that holds fewer than `most`."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    lightest = [(0.0, 0, number) for number in range(num_bins)]  # (cost, items, bin), a heap
    for index in _largest_first(costs):
        cost, count, number = heapq.heappop(lightest)
        bins[number].append(index)
        if count + 1 != most:
            heapq.heappush(lightest, (cost + float(costs[index]), count + 1, number))
    return [sorted(items) for items in bins]


def _fullest_first(bins: Iterable[list[int]], sizes: NDArray[np.int64]) -> list[MicroBatch]:
    return [sorted(micro) for micro in sorted(bins, key=lambda micro: (-int(sizes[micro].sum()), micro[0]))]


def _sizes(lengths: ArrayLike) -> NDArray[np.int64]:
    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if (sizes < 1).any():
        raise ConfigError(f"every sequence needs at least 1 token, got lengths {sizes[sizes < 1]}")
    return sizes


def _largest_first(sizes: NDArray[np.number]) -> list[int]:
    order: list[int] = np.argsort(-sizes, kind="stable").tolist()
    return order
