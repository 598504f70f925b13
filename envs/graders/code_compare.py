"""When a value or an output counts as the expected one; runs outside of every sandbox, on plain data."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ...errors import ConfigError
from .code_compare_sets import Forms, same_set

_SEQUENCES = (list, tuple)
_SETS = (set, frozenset)


@dataclass(frozen=True)
class Comparison:
    """What counts as equal.

    Raises:
        ConfigError: A tolerance is negative or no finite number, or `output` is none of the three.
    """

    exact_types: bool = False
    """True is not 1, and 1 is not 1.0."""
    tuple_is_list: bool = True
    """(1, 2) is [1, 2]: JSON knows no tuples."""
    rel_tol: float = 0.0
    """Floats may differ by so much of the larger one; of an output, tokens that are numbers."""
    abs_tol: float = 0.0
    """Floats may differ by so much."""
    nan_is_nan: bool = True
    output: Literal["tokens", "lines", "exact"] = "tokens"
    """Of a program's output: tokens between white space; lines without white space at their ends and without empty
    lines at the end; or every character."""

    def __post_init__(self) -> None:
        for name in ("rel_tol", "abs_tol"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be a number of 0 or more, got {value!r}")
        if self.output not in ("tokens", "lines", "exact"):
            raise ConfigError(f"output must be 'tokens', 'lines' or 'exact', got {self.output!r}")


def same_value(got: object, wanted: object, comparison: Comparison) -> bool:
    """Say whether plain data equals plain data."""
    if comparison.exact_types and not _is_same_type(got, wanted, comparison):
        return False
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        return _same_number(got, wanted, comparison)
    if isinstance(wanted, _SEQUENCES) and isinstance(got, _SEQUENCES):
        return (
            (comparison.tuple_is_list or type(got) is type(wanted))
            and len(got) == len(wanted)
            and all(same_value(a, b, comparison) for a, b in zip(got, wanted, strict=True))
        )
    if isinstance(wanted, _SETS) and isinstance(got, _SETS):
        return _same_set(got, wanted, comparison)
    if isinstance(wanted, dict) and isinstance(got, dict):
        return _same_dict(got, wanted, comparison)
    return type(got) is type(wanted) and got == wanted


def same_output(got: str, wanted: str, comparison: Comparison) -> bool:
    """Say whether a program wrote what it should."""
    if comparison.output == "exact":
        return got == wanted
    if comparison.output == "lines":
        got_lines, wanted_lines = _lines(got), _lines(wanted)
        if comparison.rel_tol == comparison.abs_tol == 0:
            return got_lines == wanted_lines
        return len(got_lines) == len(wanted_lines) and all(
            _same_tokens(a.split(), b.split(), comparison) for a, b in zip(got_lines, wanted_lines, strict=True)
        )
    return _same_tokens(got.split(), wanted.split(), comparison)


def _is_same_type(got: object, wanted: object, comparison: Comparison) -> bool:
    if comparison.tuple_is_list and isinstance(wanted, _SEQUENCES):
        return isinstance(got, _SEQUENCES)
    return type(got) is type(wanted)


def _same_number(got: float, wanted: float, comparison: Comparison) -> bool:
    if got == wanted:
        return True
    if got != got or wanted != wanted:
        return comparison.nan_is_nan and got != got and wanted != wanted
    if not (isinstance(got, float) or isinstance(wanted, float)) or comparison.rel_tol == comparison.abs_tol == 0:
        return False
    try:
        return math.isclose(got, wanted, rel_tol=comparison.rel_tol, abs_tol=comparison.abs_tol)
    except OverflowError:  # a whole number that no float can hold
        return False


def _same_set(got: Collection[object], wanted: Collection[object], comparison: Comparison) -> bool:
    forms = Forms(lambda number: _number_form(number, comparison), comparison.exact_types, comparison.tuple_is_list)
    if comparison.rel_tol == comparison.abs_tol == 0:
        return same_set(got, wanted, forms, None)
    return same_set(got, wanted, forms, lambda left, right: same_value(left, right, comparison))


def _number_form(number: float, comparison: Comparison) -> str:
    if number != number:
        return "nan" if comparison.nan_is_nan else f"nan {id(number)}"
    if isinstance(number, float) and (comparison.exact_types or not number.is_integer()):
        return (number + 0.0).hex()  # -0.0 is 0.0
    return f"{int(number):x}"


def _same_dict(got: Mapping[object, object], wanted: Mapping[object, object], comparison: Comparison) -> bool:
    keys = {key: key for key in wanted}
    return len(got) == len(wanted) and all(
        key in keys and same_value(key, keys[key], comparison) and same_value(value, wanted[key], comparison)
        for key, value in got.items()
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(got: list[str], wanted: list[str], comparison: Comparison) -> bool:
    return len(got) == len(wanted) and all(_same_token(a, b, comparison) for a, b in zip(got, wanted, strict=True))


def _same_token(got: str, wanted: str, comparison: Comparison) -> bool:
    if got == wanted:
        return True
    if comparison.rel_tol == comparison.abs_tol == 0:
        return False
    try:
        return _same_number(float(got), float(wanted), comparison)
    except ValueError:
        return False
