"""Keyword arguments against annotations."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional

import pytest

from turngym.envs.arguments import check_arguments
from turngym.errors import ConfigError


def takes(
    a: int = 0,
    b: float = 0.0,
    c: str = "",
    d: bool = False,
    e: int | None = None,
    f: Optional[str] = None,  # noqa: UP045
    g: Literal["x", "y"] = "x",
    h: list[int] = [],  # noqa: B006
    i: Sequence[str] = (),
    j: Mapping[str, int] = {},
    k: Any = None,
    l=None,  # noqa: E741
) -> None: ...


GOOD = {
    "a": [1], "b": [1, 1.5], "c": ["t"], "d": [True], "e": [None, 1], "f": [None, "t"], "g": ["y"],
    "h": [[1], (1,)], "i": [["t"]], "j": [{"x": 1}], "k": [object()], "l": [object()],
}  # fmt: skip
BAD = {
    "a": ["1", 1.0, True, None], "b": ["1", True], "c": [1, None], "d": [1, "true"], "e": ["1"], "f": [1],
    "g": ["z"], "h": [1, "ab"], "i": ["ab"], "j": [[1]],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_values_that_fit(name: str, value: object) -> None:
    check_arguments("it", takes, {name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_values_that_do_not(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"it: {name} wants .*, got "):
        check_arguments("it", takes, {name: value})


def test_a_number_for_text_says_how_to_quote_it() -> None:
    with pytest.raises(ConfigError, match=r"""c wants str, got 7 \(int\); quote it to keep it text: '"7"'"""):
        check_arguments("it", takes, {"c": 7})


def test_any_keyword_is_taken_where_the_function_takes_any() -> None:
    def takes_any(a: int = 0, **others: object) -> None: ...

    check_arguments("it", takes_any, {"b": 1})
    with pytest.raises(ConfigError, match="a wants int"):
        check_arguments("it", takes_any, {"a": "x"})


def test_annotations_that_only_a_type_checker_can_read_are_let_be() -> None:
    def later(a: "NotHere" = 0) -> None: ...  # noqa: F821

    check_arguments("it", later, {"a": "x"})
