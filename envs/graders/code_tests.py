"""Tests as datasets write them: JSON in one of four forms; docs/graders.md describes them."""

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import ConfigError, DataError
from .code import CodeTests, shown
from .code_calls import Call, CallTests
from .code_compare import Comparison
from .code_stdio import Example, OutputTests
from .code_unit import UnitTests

_SHARED = frozenset({"compare", "prelude", "entry_point"})
TYPING_PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string
from collections import Counter, OrderedDict, defaultdict, deque
from functools import cache, lru_cache, reduce
from heapq import heapify, heappop, heappush
from itertools import accumulate, combinations, permutations, product
from math import ceil, comb, floor, gcd, inf, sqrt
from typing import *
"""
"""What solutions written for LeetCode's form take for granted."""


def parse_tests(data: object) -> CodeTests:
    """Return the tests that a dataset's column holds, as JSON text or already read.

    Raises:
        DataError: It has none of the forms; says what was wanted.
    """
    if isinstance(data, str):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the tests are no JSON ({error}): {shown(data)}") from None
    if isinstance(data, list):
        data = {"examples": data}
    if not isinstance(data, Mapping):
        raise DataError(f"wanted tests as a JSON object or a list of inputs and outputs, got {shown(data)}")
    given = {key: value for key, value in data.items() if value is not None}  # Arrow gives every row every key
    forms = [form for form in _FORMS if form in given]
    if len(forms) != 1:
        raise DataError(f"wanted tests with just one of {', '.join(map(repr, _FORMS))}, got the keys {sorted(given)}")
    try:
        return _FORMS[forms[0]](given)
    except (ConfigError, TypeError, ValueError, SyntaxError, RecursionError) as error:
        raise DataError(f"the tests ({forms[0]!r}) cannot be used: {error}") from error


def _calls(given: Mapping[str, Any]) -> CallTests:
    _check_keys(given, {"calls", "literals"})
    read = _literal if _flag(given, "literals") else _as_it_is
    calls = []
    for call in _listed(given, "calls"):
        _check_keys(call, {"args", "kwargs", "expected"}, shared=frozenset())
        args, kwargs = read(call.get("args", "[]" if read is _literal else [])), call.get("kwargs") or {}
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping) or "expected" not in call:
            raise DataError(f"a call wants expected, args as a list and kwargs as an object, got {shown(call)}")
        calls.append(Call(tuple(args), read(call["expected"]), {key: read(value) for key, value in kwargs.items()}))
    return CallTests(_entry_point(given), tuple(calls), _comparison(given), str(given.get("prelude", "")))


def _examples(given: Mapping[str, Any]) -> OutputTests:
    _check_keys(given, {"examples"})
    found = []
    for example in _listed(given, "examples"):
        if not isinstance(example, Mapping):
            raise DataError(f"wanted an example as an object, got {shown(example)}")
        pairs = (("stdin", "stdout"), ("input", "output"))
        pair = next((pair for pair in pairs if all(isinstance(example.get(key), str) for key in pair)), None)
        if pair is None or example.get("testtype", "stdin") != "stdin":
            raise DataError(
                f"an example wants the texts 'stdin' and 'stdout' (or 'input', 'output'), got {shown(example)}"
            )
        found.append(Example(example[pair[0]], example[pair[1]]))
    return OutputTests(tuple(found), _comparison(given))


def _inputs(given: Mapping[str, Any]) -> CodeTests:
    """Read the form of APPS, TACO and LiveCodeBench."""
    _check_keys(given, {"inputs", "outputs", "fn_name"})
    inputs, outputs = _listed(given, "inputs"), _listed(given, "outputs")
    if len(inputs) != len(outputs):
        raise DataError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = list(zip(inputs, outputs, strict=True))
    if not given.get("fn_name"):
        examples = tuple(Example(_text(stdin), _text(stdout)) for stdin, stdout in pairs)
        return OutputTests(examples, _comparison(given))
    calls = tuple(_call(arguments, expected) for arguments, expected in pairs)
    return CallTests(given["fn_name"], calls, _comparison(given), str(given.get("prelude", TYPING_PRELUDE)))


def _unit_tests(given: Mapping[str, Any]) -> UnitTests:
    _check_keys(given, {"unit_tests"})
    source, entry_point = given["unit_tests"], given.get("entry_point")
    if isinstance(source, list):
        source = "\n".join(map(str, source))  # MBPP lists its assertions
    if not isinstance(source, str):
        raise DataError(f"wanted unit_tests as text or a list of lines, got {shown(source)}")
    return UnitTests(source, entry_point, str(given.get("prelude", "")))


_FORMS: dict[str, Callable[[Mapping[str, Any]], CodeTests]] = {
    "calls": _calls,
    "examples": _examples,
    "inputs": _inputs,
    "unit_tests": _unit_tests,
}


def _call(arguments: object, expected: object) -> Call:
    # LiveCodeBench writes arguments as lines of JSON, APPS as a list; APPS may wrap a result in a list, or not.
    if isinstance(arguments, str):
        args = [json.loads(line) for line in arguments.split("\n") if line.strip()]
        return Call(tuple(args), json.loads(expected) if isinstance(expected, str) else expected)
    if not isinstance(arguments, list):
        raise DataError(f"wanted the arguments of a call as a list or as lines of JSON, got {shown(arguments)}")
    also = tuple(expected) if isinstance(expected, list) and len(expected) == 1 else ()
    return Call(tuple(arguments), expected, or_expected=also)


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(map(str, value))
    if not isinstance(value, str):
        raise DataError(f"without fn_name, inputs and outputs are texts or lists of lines, got {shown(value)}")
    return value


def _listed(given: Mapping[str, Any], key: str) -> list[Any]:
    value = given.get(key)
    if not isinstance(value, list) or not value:
        raise DataError(f"wanted {key!r} as a list that is not empty, got {shown(value)}")
    return value


def _entry_point(given: Mapping[str, Any]) -> str:
    name = given.get("entry_point")
    if not isinstance(name, str) or not name.isidentifier():
        raise DataError(f"calls want 'entry_point', the name of the function, got {name!r}")
    return name


def _comparison(given: Mapping[str, Any]) -> Comparison:
    compare = given.get("compare") or {}
    if not isinstance(compare, Mapping):
        raise DataError(f"wanted 'compare' as an object, got {shown(compare)}")
    known = Comparison.__dataclass_fields__
    unknown = sorted(set(compare) - set(known))
    if unknown:
        raise DataError(f"'compare' takes {', '.join(known)}, not {', '.join(map(repr, unknown))}")
    return Comparison(**{key: value for key, value in compare.items() if value is not None})


def _check_keys(given: object, known: set[str], shared: frozenset[str] = _SHARED) -> None:
    if not isinstance(given, Mapping):
        raise DataError(f"wanted an object, got {shown(given)}")
    unknown = sorted(set(given) - known - shared)
    if unknown:
        raise DataError(f"takes {', '.join(sorted(known | shared))}, not {', '.join(map(repr, unknown))}")


def _flag(given: Mapping[str, Any], key: str) -> bool:
    if not isinstance(given.get(key, False), bool):
        raise DataError(f"wanted {key!r} as true or false, got {given[key]!r}")
    return bool(given.get(key, False))


def _literal(text: object) -> Any:  # Any: whatever the literal is
    if not isinstance(text, str):
        raise DataError(f"with 'literals', values are texts of Python literals, got {shown(text)}")
    return ast.literal_eval(text)


def _as_it_is(value: Any) -> Any:  # Any: plain data of every kind
    return value
