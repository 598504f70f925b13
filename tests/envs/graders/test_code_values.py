"""Plain data as bytes, and bytes that nobody honest wrote."""

import collections
import contextlib
import enum
import math
import random

import numpy as np
import pytest

from turngym.envs.graders.code_values import MAX_DEPTH, decode, decode_all, encode


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, b"N"),
        (True, b"T"),
        (-255, b"i-ff;"),
        (0.5, b"f0x1.0000000000000p-1;"),
        ("é", b"s2:\xc3\xa9"),
        (b"\0", b"b1:\0"),
        ([1, (2,)], b"l2:i1;t1:i2;"),
        ({"a": {3}}, b"d1:s1:ae1:i3;"),
        (frozenset([""]), b"z1:s0:"),
    ],
)
def test_the_form(value: object, data: bytes) -> None:
    assert encode(value) == data
    assert decode(data) == value
    assert type(decode(data)) is type(value)


def draw(rng: random.Random, depth: int, hashable: bool = False) -> object:
    leaves = [
        None,
        True,
        False,
        rng.randint(-(10**30), 10**30),
        rng.gauss(0, 1e9),
        "\ud800 \n" * rng.randint(0, 3),
        b"\xff",
    ]
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(leaves)
    size = rng.randint(0, 4)
    kind = rng.choice(["tuple", "frozenset"] if hashable else ["list", "tuple", "set", "frozenset", "dict"])
    if kind == "dict":
        return {draw(rng, depth - 1, True): draw(rng, depth - 1) for _ in range(size)}
    items = (draw(rng, depth - 1, hashable or "set" in kind) for _ in range(size))
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


@pytest.mark.parametrize("seed", range(50))
def test_what_goes_in_comes_out(seed: int) -> None:
    value = draw(random.Random(seed), 5)
    again = decode(encode(value))
    assert repr(again) == repr(value) or again == value  # sets have no order


def test_floats_are_exact_and_strange_ones_pass() -> None:
    assert decode(encode([math.inf, -math.inf, -0.0, 5e-324]))[3] == 5e-324
    assert math.copysign(1, decode(encode(-0.0))) == -1
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode(10**5000)) == 10**5000  # more digits than Python reads or writes


def test_subclasses_become_what_they_extend() -> None:
    class Loud(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

        def encode(self, *args: object) -> bytes:
            return b"what was wanted"

    class Colour(enum.IntEnum):
        RED = 3

    values = [Loud("quiet"), Colour.RED, collections.Counter("aa"), np.float64(0.5), np.int64(7), np.arange(2)]
    got = decode(encode(values))
    assert got == ["quiet", 3, {"a": 2}, 0.5, 7, [0, 1]]
    assert [type(value) for value in got] == [str, int, dict, float, int, list]


@pytest.mark.parametrize("value", [object(), 1j, range(3), iter([]), print, [{"a": object()}], ValueError("x")])
def test_other_objects_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="an object of type"):
        encode(value)


def test_depth_is_bounded_both_ways() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="deep"):
        encode(cycle)
    with pytest.raises(ValueError, match="deeply"):
        decode(b"l1:" * (MAX_DEPTH + 1) + b"N")
    with pytest.raises(ValueError, match="deeply"):
        decode(b"l1:" * 1_000_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"X",
        b"i12",
        b"iTen;",
        b"i;",
        b"f0x1.0p+99999;",
        b"fgold;",
        b"s5:abc",
        b"s-1:",
        b"s2:\xff\xff",
        b"l3:NN",
        b"l99999999999999999999:",
        b"d1:N",
        b"d1:l0:N",
        b"e1:d0:",
        b"NN",
        b"l-1:",
        b"cos\nsystem\n(S'echo'\ntR.",
    ],
)
def test_malformed_bytes_are_value_errors(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (each says something else)
        decode(data)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_bytes_are_plain_data_or_value_errors(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(encode(draw(rng, 5)))
    for _ in range(3):
        data[rng.randrange(len(data))] = rng.choice(b"NTFifsbltezd0123:;\xff")
    with contextlib.suppress(ValueError):
        encode(decode(bytes(data)))


def test_too_many_values_are_refused() -> None:
    with pytest.raises(ValueError, match="too many values"):
        decode(b"l9:" + b"N" * 9, max_values=9)
    assert decode(b"l9:" + b"N" * 9, max_values=10) == [None] * 9


@pytest.mark.slow
@pytest.mark.timeout(60)  # comparing each with each takes minutes
def test_keys_that_collide_on_purpose_cost_nothing() -> None:
    modulus = (1 << 61) - 1
    data = encode({index * modulus for index in range(40)})
    assert len(decode(data)) == 40
    forged = b"e200000:" + b"".join(encode(index * modulus) for index in range(200_000))
    with pytest.raises(ValueError, match="hash"):
        decode(forged)


def test_objects_cross_as_references_where_both_sides_agree() -> None:
    thing = object()
    data = encode([thing, {"a": (thing, 1)}], lambda value: "#7" if value is thing else None)
    assert data == b"l2:o2:#7d1:s1:at2:o2:#7i1;"
    assert decode(data, resolve={"#7": thing}.get) == [thing, {"a": (thing, 1)}]
    with pytest.raises(ValueError, match="no value begins with b'o'"):
        decode(data)
    with pytest.raises(TypeError, match="type object"):
        encode(thing, lambda value: None)


def test_values_one_after_another() -> None:
    assert decode_all(b"i1;T") == ([1, True], True)
    assert decode_all(b"i1;Tx") == ([1, True], False)
    assert decode_all(b"") == ([], True)
