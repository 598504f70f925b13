"""Sums and means over the action tokens of each sequence, given back to each of its tokens."""

# N tokens, S sequences

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def sequence_sum(values_N: "Tensor", is_action_N: "Tensor", sequence_N: "Tensor", num_sequences: int) -> "Tensor":
    """Return for each token the sum over its sequence's action tokens, in float64: long sums lose nothing."""
    values_N = values_N.double().where(is_action_N, 0.0)
    sums_S = values_N.new_zeros(num_sequences).index_add(0, sequence_N, values_N)
    return sums_S[sequence_N]


def sequence_mean(values_N: "Tensor", is_action_N: "Tensor", sequence_N: "Tensor", num_sequences: int) -> "Tensor":
    """Return for each token the mean over its sequence's action tokens, in float64; 0 where there are none."""
    count_N = sequence_sum(is_action_N, is_action_N, sequence_N, num_sequences)
    return sequence_sum(values_N, is_action_N, sequence_N, num_sequences) / count_N.clamp(min=1)
