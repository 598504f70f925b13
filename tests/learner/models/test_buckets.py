"""Sorting packed sequences into buckets and back loses and mixes nothing."""

import pytest
import torch

from turngym.learner.models.buckets import BUCKET_FILL, bucketed_attention, lay_out


def starts(lengths):
    return tuple(torch.tensor([0, *lengths]).cumsum(0).tolist())


def test_layout_by_hand():
    """Lengths 2, 5, 4: the 5 and the 4 share a bucket with one gap, the 2 has its own."""
    layout = lay_out(starts([2, 5, 4]), torch.device("cpu"))
    assert layout.buckets == ((2, 5), (1, 2))
    assert layout.gather_P.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 0, 1]
    assert layout.is_token_P1[:, 0].tolist() == [True] * 9 + [False] + [True] * 2
    assert layout.restore_T.tolist() == [10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_gaps_are_few():
    lengths = torch.randint(1, 500, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    layout = lay_out(starts(lengths), torch.device("cpu"))
    assert layout.gather_P[layout.restore_T].tolist() == list(range(sum(lengths)))
    assert len(layout.gather_P) <= sum(lengths) / BUCKET_FILL
    assert len(layout.buckets) < 35


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
def test_gradients_pass_a_numerical_check(window):
    torch.manual_seed(0)
    layout = lay_out(starts([5, 1, 4]), torch.device("cpu"))
    tensors = [torch.randn(10, heads, 4, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    assert torch.autograd.gradcheck(lambda q, k, v: bucketed_attention(q, k, v, layout, 0.5, window), tensors)
