"""Metrics divide only after all parts are merged."""

import pytest

from turngym.learner.metrics import EffectiveSize, Largest, Mean, merge, values


def test_means_weigh_parts_by_their_count():
    assert values(merge([{"x": Mean(10.0, 1)}, {"x": Mean(0.0, 9)}, {"y": Mean(1.0, 2)}])) == {"x": 1.0, "y": 0.5}


def test_what_was_not_counted_has_no_value():
    assert values({"mean": Mean(0.0, 0), "largest": Largest(None), "size": EffectiveSize(0.0, 0.0, 0)}) == {}
    assert values(merge([{"x": Mean(0.0, 0)}, {"x": Mean(0.0, 3)}])) == {"x": 0.0}


def test_the_largest_of_all_parts():
    assert Largest(None).merge(Largest(-2.0)).merge(Largest(-3.0)).value() == -2.0


@pytest.mark.parametrize(("weights", "expected"), [([2, 2, 2], 1.0), ([1, 0], 0.5), ([3, 1], 0.8), ([0, 0], 0.0)])
def test_effective_size_by_hand(weights, expected):
    parts = [{"size": EffectiveSize(w, w * w, 1)} for w in weights]
    assert values(merge(parts))["size"] == pytest.approx(expected)
