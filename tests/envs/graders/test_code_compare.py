"""What counts as equal."""

import itertools
import math
import random

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
        ({float("nan")}, {float("nan")}, Comparison(nan_is_nan=False), False),
        ({(NAN, 1), (float("nan"), 1)}, {(float("nan"), 1), (float("nan"), True)}, PLAIN, True),
        ({-0.0}, {0.0}, EXACT, True),
        ({0}, {0.0}, EXACT, False),
        ({2.0, math.inf}, {2, math.inf}, PLAIN, True),
        ({frozenset({1})}, {frozenset({1.0})}, PLAIN, True),
        ({frozenset({1})}, {frozenset({1.0})}, EXACT, False),
        ({"1"}, {1}, PLAIN, False),
        ({b"1"}, {"1"}, PLAIN, False),
        ({None}, {"None"}, PLAIN, False),
        ({(1, 2)}, {(2, 1)}, PLAIN, False),
        ({10**400}, {10**400}, NEAR, True),
        ({10**5000}, {10**5000}, EXACT, True),
        ({float(i) for i in range(200)}, {i + 1e-10 for i in range(200)}, NEAR, False),  # too many to be matched
    ],
)
def test_values(got: object, wanted: object, comparison: Comparison, same: bool) -> None:
    assert same_value(got, wanted, comparison) is same


def nested(depth: int, name: str) -> object:
    """A set of 16 sets of 16 ..., whose name stands in one leaf; none is equal to its copy, for NaN is in all."""
    if depth == 0:
        return (float("nan"), name)
    names = [*map(str, range(15)), f"15 of {name}"]
    return frozenset(nested(depth - 1, name) for name in names)


@pytest.mark.slow
@pytest.mark.timeout(60)  # comparing each with each takes minutes
@pytest.mark.parametrize("comparison", [PLAIN, EXACT, STRICT])
def test_deep_sets_are_not_compared_each_with_each(comparison: Comparison) -> None:
    wanted = nested(4, "all")
    assert same_value(nested(4, "all"), wanted, comparison)
    assert not same_value(nested(4, "none"), wanted, comparison)


def near_numbers(depth: int, first: float) -> object:
    """A set of two sets of two sets ..., whose 2 ** depth leaves are numbered."""
    if depth == 0:
        return first
    return frozenset({near_numbers(depth - 1, first), near_numbers(depth - 1, first + 2 ** (depth - 1))})


def test_deep_sets_of_floats_that_differ_a_little() -> None:
    near = Comparison(abs_tol=1.5)
    assert same_value(near_numbers(7, 0.0), near_numbers(7, 1.0), near)
    assert not same_value(near_numbers(7, 0.0), near_numbers(7, 2.0), near)


@pytest.mark.timeout(60)
def test_a_chain_of_sets_is_walked_once() -> None:
    def chain(depth: int, leaf: object) -> object:
        return frozenset({chain(depth - 1, leaf), f"{depth}"}) if depth else leaf

    for comparison in (PLAIN, EXACT, NEAR):
        assert same_value(chain(60, 1), chain(60, True), comparison) is (not comparison.exact_types)
        assert not same_value(chain(60, 1), chain(60, 2), comparison)
    assert same_value(chain(60, 0.3), chain(60, 0.1 + 0.2), NEAR)
    assert not same_value(chain(60, 0.3), chain(60, 0.31), NEAR)


@pytest.mark.timeout(60)
def test_forms_of_members_that_collide_on_purpose_cost_nothing() -> None:
    modulus = (1 << 61) - 1
    members = [frozenset({index * modulus, (index + k) * modulus}) for index in range(200) for k in range(1, 9)]
    assert same_value({*members}, {*members}, EXACT)
    assert not same_value({*members[1:]}, {*members[:-1]}, EXACT)


def test_members_near_several_find_a_partner_each() -> None:
    near = Comparison(abs_tol=0.06)
    # 1.0 is in both, but only if it goes to 0.95 does 1.05 find 1.0.
    assert same_value({1.0, 1.05}, {1.0, 0.95}, near)
    assert not same_value({1.0, 1.05}, {1.0, 0.9}, near)
    assert same_value({(1.0, "a"), (1.05, "a")}, {(0.95, "a"), (1.0, "a")}, near)
    assert not same_value({(1.0, "a"), (1.05, "b")}, {(0.95, "b"), (1.0, "a")}, near)


@pytest.mark.parametrize("seed", range(20))
def test_matching_finds_what_trying_all_orders_finds(seed: int) -> None:
    rng = random.Random(seed)
    near = Comparison(abs_tol=1.1)
    for _ in range(20):
        got, wanted = ({float(rng.randrange(8)) for _ in range(rng.randint(1, 5))} for _ in range(2))
        expected = len(got) == len(wanted) and any(
            all(abs(a - b) <= 1.1 for a, b in zip(got, order, strict=True)) for order in itertools.permutations(wanted)
        )
        assert same_value(got, wanted, near) is expected, (got, wanted)


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
