"""Sums within sequences, whatever stands off actions."""

import math

import torch

from turngym.learner.losses.sequence_sums import sequence_mean, sequence_sum


def test_sums_and_means_by_hand():
    """Sequence 0 is cut in two by an unrelated token's mask, sequence 1 has no action, sequence 2 has one."""
    numbers = torch.tensor([1.0, math.nan, 3.0, math.inf, 5.0])
    is_action = torch.tensor([True, False, True, False, True])
    sequence = torch.tensor([0, 0, 0, 1, 2])
    assert sequence_sum(numbers, is_action, sequence, 3).tolist() == [4, 4, 4, 0, 5]
    assert sequence_mean(numbers, is_action, sequence, 3).tolist() == [2, 2, 2, 0, 5]
    none = torch.zeros(0)
    assert sequence_mean(none, none.bool(), none.long(), 0).tolist() == []


def test_long_sums_lose_nothing_in_single_precision():
    """In float32 a million times 0.1 summed one by one gives 100958."""
    numbers = torch.full((1_000_000,), 0.1)
    total = sequence_sum(numbers, torch.ones(len(numbers), dtype=torch.bool), torch.zeros(len(numbers)).long(), 1)
    assert abs(total[0].item() - 1_000_000 * float(numbers[0])) < 1e-3
