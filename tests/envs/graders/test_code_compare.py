"""What counts as equal."""

import math

import pytest

from turngym.envs.graders.code_compare import Comparison, same_output, same_value
from turngym.errors import ConfigError

PLAIN = Comparison()
EXACT = Comparison(exact_types=True)
STRICT = Comparison(exact_types=True, tuple_is_list=False)
NEAR = Comparison(rel_tol=1e-6, abs_tol=1e-9)
NAN = math.nan


@pytest.mark.parametrize(
    ("got", "wanted", "comparison", "same"),
    [
        (1, True, PLAIN, True),
        (1, True, EXACT, False),
        (1.0, 1, PLAIN, True),
        (1.0, 1, EXACT, False),
        ("1", 1, PLAIN, False),
        (b"a", "a", PLAIN, False),
        (None, 0, PLAIN, False),
        (None, None, EXACT, True),
        ((1, 2), [1, 2], PLAIN, True),
        ((1, 2), [1, 2], EXACT, True),
        ((1, 2), [1, 2], Comparison(tuple_is_list=False), False),
        ((1, 2), [1, 2], STRICT, False),
        ([[1, (2,)]], [[1, [2]]], PLAIN, True),
        ([1, 2], [1, 2, 3], PLAIN, False),
        ([1, 2], {1, 2}, PLAIN, False),
        ({1, 2}, frozenset({2, 1}), PLAIN, True),
        ({1, 2}, frozenset({2, 1}), STRICT, False),
        ({True}, {1}, PLAIN, True),
        ({True}, {1}, EXACT, False),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, PLAIN, True),
        ({"a": 1}, {"a": True}, EXACT, False),
        ({1: "a"}, {True: "a"}, EXACT, False),
        ({"a": 1, "b": 2}, {"a": 1, "c": 2}, PLAIN, False),
        ({"a": 1}, {"a": 1, "b": 2}, PLAIN, False),
        (0.3, 0.1 + 0.2, PLAIN, False),
        (0.3, 0.1 + 0.2, NEAR, True),
        (1e6, 1e6 + 0.5, NEAR, True),
        (1e6, 1e6 + 2, NEAR, False),
        (10**9, 10**9 + 1, NEAR, False),  # whole numbers have no tolerance
        (10**400, 1.0, NEAR, False),
        ([0.3], [0.1 + 0.2], NEAR, True),
        ({0.3, 1}, {0.1 + 0.2, 1}, NEAR, True),
        ({0.3, 1}, {0.5, 1}, NEAR, False),
        ({"x": 0.3}, {"x": 0.1 + 0.2}, NEAR, True),
        (math.inf, math.inf, PLAIN, True),
        (math.inf, -math.inf, NEAR, False),
        (math.inf, 1e308, NEAR, False),
        (NAN, float("nan"), PLAIN, True),
        (NAN, float("nan"), Comparison(nan_is_nan=False), False),
        (NAN, 0.0, NEAR, False),
        ({float("nan")}, {float("nan")}, PLAIN, True),
    ],
)
def test_values(got: object, wanted: object, comparison: Comparison, same: bool) -> None:
    assert same_value(got, wanted, comparison) is same


@pytest.mark.parametrize(
    ("got", "wanted", "mode", "same"),
    [
        ("1 2\n3\n", "1  2 3", "tokens", True),
        ("1 2", "12", "tokens", False),
        ("1 2 \n3\n\n", "1 2\n3", "lines", True),
        ("1 2 3", "1 2\n3", "lines", False),
        ("\n1", "1", "lines", False),
        ("1\n", "1", "exact", False),
        ("1\n", "1\n", "exact", True),
        ("YES", "yes", "tokens", False),
        ("1.0", "1", "tokens", False),
        ("", "", "tokens", True),
    ],
)
def test_outputs(got: str, wanted: str, mode: str, same: bool) -> None:
    assert same_output(got, wanted, Comparison(output=mode)) is same


@pytest.mark.parametrize(
    ("got", "wanted", "same"),
    [
        ("0.3333333 x", "0.33333333 x", True),
        ("0.3333 x", "0.33333333 x", False),
        ("1.0", "1", True),
        ("x", "y", False),
        ("nan", "nan", True),
        ("nan", "1", False),
    ],
)
@pytest.mark.parametrize("mode", ["tokens", "lines"])
def test_numbers_in_outputs_have_a_tolerance_where_asked(got: str, wanted: str, same: bool, mode: str) -> None:
    assert same_output(got, wanted, Comparison(rel_tol=1e-6, output=mode)) is same


@pytest.mark.parametrize("arguments", [{"rel_tol": -1}, {"abs_tol": NAN}, {"rel_tol": True}, {"output": "bytes"}])
def test_bad_options_are_refused(arguments: dict) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Comparison(**arguments)
