"""Tests as datasets write them."""

import json

import pytest

from turngym.envs.graders.code_calls import Call, CallTests
from turngym.envs.graders.code_compare import Comparison
from turngym.envs.graders.code_stdio import Example, OutputTests
from turngym.envs.graders.code_tests import TYPING_PRELUDE, parse_tests
from turngym.envs.graders.code_unit import UnitTests
from turngym.errors import DataError

CALLS = {
    "entry_point": "f",
    "calls": [{"args": [1, [2]], "expected": 3}, {"args": [], "kwargs": {"x": None}, "expected": None}],
    "compare": {"exact_types": True, "rel_tol": 1e-6},
    "prelude": "import math",
}


def test_calls() -> None:
    wanted = CallTests(
        "f",
        (Call((1, [2]), 3), Call((), None, {"x": None})),
        Comparison(exact_types=True, rel_tol=1e-6),
        "import math",
    )
    assert parse_tests(CALLS) == parse_tests(json.dumps(CALLS)) == wanted


def test_calls_of_python_literals() -> None:
    call = {"args": "[(1, 2), {3}]", "kwargs": {"x": "b'a'"}, "expected": "{1: (2,)}"}
    tests = parse_tests({"entry_point": "f", "calls": [call], "literals": True})
    assert tests.calls == (Call(((1, 2), {3}), {1: (2,)}, {"x": b"a"}),)


def test_columns_that_arrow_filled_with_nulls_are_not_there() -> None:
    row = {**CALLS, "inputs": None, "fn_name": None, "compare": {"rel_tol": None, "exact_types": True}}
    assert parse_tests(row).comparison == Comparison(exact_types=True)


def test_inputs_and_outputs_of_programs() -> None:
    wanted = OutputTests((Example("1\n", "2\n"), Example("3", "4")))
    assert parse_tests({"inputs": ["1\n", "3"], "outputs": ["2\n", "4"]}) == wanted
    assert parse_tests({"examples": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "3", "stdout": "4"}]}) == wanted
    livecodebench = [{"input": "1\n", "output": "2\n", "testtype": "stdin"}, {"input": "3", "output": "4"}]
    assert parse_tests(json.dumps(livecodebench)) == wanted
    lines = parse_tests({"inputs": [["1", "2"]], "outputs": [["3"]], "compare": {"output": "lines"}})
    assert lines == OutputTests((Example("1\n2", "3"),), Comparison(output="lines"))


def test_inputs_and_outputs_of_functions() -> None:
    apps = parse_tests({"fn_name": "f", "inputs": [[1, 2], [[3]]], "outputs": [[3], [3, 4]]})
    assert apps.calls == (Call((1, 2), [3], or_expected=(3,)), Call(([3],), [3, 4]))
    livecodebench = parse_tests({"fn_name": "f", "inputs": ["[1, 2]\n3\n"], "outputs": ['"x"']})
    assert livecodebench.calls == (Call(([1, 2], 3), "x"),)
    assert livecodebench.prelude == TYPING_PRELUDE
    compile(TYPING_PRELUDE, "prelude", "exec")


def test_test_files() -> None:
    assert parse_tests({"unit_tests": "def test_a(): pass"}) == UnitTests("def test_a(): pass")
    mbpp = parse_tests({"unit_tests": ["assert f(1) == 2", "assert f(2) == 3"], "entry_point": "f"})
    assert mbpp == UnitTests("assert f(1) == 2\nassert f(2) == 3", "f")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (None, "a JSON object or a list"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        (3, "a JSON object or a list"),
        ({}, r"got the keys \[\]"),
        ({"calls": [], "examples": []}, "just one of"),
        ({"calls": [], "entry_point": "f"}, "'calls' as a list that is not empty"),
        ({"calls": [{"args": [1], "expected": 1}]}, "the name of the function, got None"),
        ({**CALLS, "entry_point": "f()"}, r"got 'f\(\)'"),
        ({**CALLS, "timeout": 3}, "not 'timeout'"),
        ({**CALLS, "compare": {"tolerance": 1}}, "not 'tolerance'"),
        ({**CALLS, "compare": {"rel_tol": -1}}, "rel_tol must be"),
        ({**CALLS, "compare": "exact"}, "'compare' as an object"),
        ({**CALLS, "calls": [{"args": [1]}]}, "expected"),
        ({**CALLS, "calls": [{"args": "1", "expected": 1}]}, "args as a list"),
        ({**CALLS, "calls": [{"args": [1], "expect": 1}]}, "not 'expect'"),
        ({**CALLS, "calls": [7]}, "wanted an object, got 7"),
        ({**CALLS, "literals": True}, "texts of Python literals"),
        ({**CALLS, "literals": "yes"}, "true or false"),
        ({"entry_point": "f", "literals": True, "calls": [{"args": "[f()]", "expected": "1"}]}, "malformed"),
        ({"inputs": ["1"], "outputs": []}, "'outputs' as a list that is not empty"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "1 inputs and 2 outputs"),
        ({"inputs": [1], "outputs": ["1"]}, "texts or lists of lines, got 1"),
        ({"inputs": [1], "outputs": [1], "fn_name": "f"}, "as a list or as lines of JSON, got 1"),
        ({"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}, "Expecting value"),
        ({"examples": ["1"]}, "an example as an object"),
        ({"examples": [{"stdin": "1"}]}, "'stdin' and 'stdout'"),
        ([{"input": "1", "output": "1", "testtype": "functional"}], "'stdin' and 'stdout'"),
        ({"unit_tests": "def ("}, "no Python"),
        ({"unit_tests": 3}, "as text or a list of lines"),
    ],
)
def test_what_cannot_be_used_is_named(data: object, what: str) -> None:
    with pytest.raises(DataError, match=what):
        parse_tests(data)
