"""Graders that run code: what is right passes, and nothing else does."""

import asyncio
import time

import pytest

from turngym.envs.graders.code import CodeTests, CodeVerdict, Grading
from turngym.envs.graders.code_calls import Call, CallTests
from turngym.envs.graders.code_compare import Comparison
from turngym.envs.graders.code_stdio import Example, OutputTests
from turngym.envs.graders.code_unit import UnitTests
from turngym.errors import ConfigError, GraderError, SandboxError
from turngym.sandbox.base import Sandbox

from ..unsafe_sandbox import UnsafeSandbox
from .hacks import HACKS, SEARCH

pytestmark = pytest.mark.slow

RIGHT = "def add(a, b):\n    return a + b\n"
CALLS = CallTests("add", (Call((1, 2), 3), Call((734_000, 33), 734_033), Call((), 5, {"a": 2, "b": 3})))
CHECK = (
    "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert abs(candidate(734000, 33) - 734033) < 1e-6\n"
)
CASES = """
import unittest
from solution import add

class AddTest(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(1, 2), 3)

    def test_large(self):
        self.assertAlmostEqual(add(734000, 33), 734033)
        self.assertTrue(add(734000, 33) == 734033)
"""
FORMS: dict[str, CodeTests] = {"calls": CALLS, "check": UnitTests(CHECK, "add"), "cases": UnitTests(CASES)}


async def grade(sandbox: Sandbox, tests: CodeTests, code: str, **options) -> CodeVerdict:
    options = {"test_s": 1.0, "total_s": 4.0, "memory_bytes": 256 << 20, **options}
    return await tests.grade(code, Grading(sandbox, **options))


@pytest.mark.parametrize("form", FORMS)
async def test_the_right_program_passes(sandbox: Sandbox, form: str) -> None:
    verdict = await grade(sandbox, FORMS[form], RIGHT, test_s=10, total_s=30)
    assert verdict.is_correct
    assert verdict.failure is None
    assert verdict.share == 1.0
    assert verdict.tier == sandbox.tier
    assert verdict.wall_s > 0


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
async def test_hacks_score_nothing(sandbox: Sandbox, form: str) -> None:
    verdicts = await asyncio.gather(
        *(grade(sandbox, FORMS[form], code, test_s=0.5, total_s=1.5) for code in HACKS.values())
    )
    for hack, verdict in zip(HACKS, verdicts, strict=True):
        assert verdict.num_passed == 0, (hack, verdict)
        assert verdict.failure, hack


@pytest.mark.parametrize("form", FORMS)
async def test_what_is_expected_is_nowhere_to_be_found(sandbox: Sandbox, form: str) -> None:
    verdict = await grade(sandbox, FORMS[form], SEARCH, test_s=20, total_s=60)
    assert set(verdict.outcomes) == {"wrong"}, verdict


async def test_the_search_finds_what_is_there(sandbox: Sandbox) -> None:
    tests = CallTests("add", (Call((734_033, 0), 734_033),))
    assert (await grade(sandbox, tests, SEARCH, test_s=20, total_s=60)).is_correct


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", ["", " \n", "x" * (5 << 20), "s = '\ud800'"])
async def test_code_that_cannot_be_run_is_wrong(unsafe: UnsafeSandbox, form: str, code: str) -> None:
    verdict = await grade(unsafe, FORMS[form], code)
    assert set(verdict.outcomes) == {"refused"}
    assert (verdict.num_passed, verdict.tier) == (0, None)
    assert unsafe.num_runs == len(unsafe.sessions) == 0


@pytest.mark.parametrize(("form", "what"), [("calls", "run"), ("check", "open"), ("check", "cell"), ("check", "close")])
async def test_a_failing_sandbox_is_no_score(unsafe: UnsafeSandbox, form: str, what: str) -> None:
    unsafe.failing = {what: 1}
    with pytest.raises(SandboxError, match=f"{what} failed"):
        await grade(unsafe, FORMS[form], RIGHT)
    assert unsafe.num_sessions == (what == "close")


@pytest.mark.parametrize("form", FORMS)
async def test_call_forms_are_for_python(unsafe: UnsafeSandbox, form: str) -> None:
    with pytest.raises(GraderError, match="for Python only, not bash"):
        await grade(unsafe, FORMS[form], RIGHT, language="bash")
    with pytest.raises(GraderError, match="cpp cannot be run here; this sandbox runs bash, python"):
        await grade(unsafe, FORMS[form], RIGHT, language="cpp")


async def test_partial_credit_counts_every_call(sandbox: Sandbox) -> None:
    code = """
def add(a, b):
    if a == 0: raise ValueError("no zeros")
    if a == 1:
        while True: pass
    if a == 2: exit(0)
    if a == 3:
        import os; os._exit(1)
    if a == 4: return -1
    if a == 5: return object()
    return a + b
"""
    tests = CallTests("add", tuple(Call((a, 10), a + 10) for a in range(8)))
    verdict = await grade(sandbox, tests, code, test_s=0.5, total_s=20)
    assert verdict.outcomes == (
        "error", "timeout", "error", "exited", "wrong", "not data", "passed", "passed",
    )  # fmt: skip
    assert (verdict.num_passed, verdict.num_tests, verdict.share) == (2, 8, 0.25)
    assert verdict.failure == "test 1 of 8: add(0, 10): ValueError: no zeros (line 3)"
    early = await grade(sandbox, tests, code, test_s=0.5, total_s=20, stops_early=True)
    assert early.outcomes == ("error", *["not run"] * 7)


async def test_calls_do_not_see_each_other(sandbox: Sandbox) -> None:
    code = "seen = []\ndef count(x):\n    seen.append(x)\n    open('f', 'a').write('x')\n    return len(seen)\n"
    assert (await grade(sandbox, CallTests("count", (Call((1,), 1),) * 3), code)).is_correct


async def test_the_time_of_all_calls_is_bounded(sandbox: Sandbox) -> None:
    tests = CallTests("add", tuple(Call((a, 10), a + 10) for a in range(20)))
    started = time.monotonic()
    verdict = await grade(sandbox, tests, HACKS["infinite loop in the call"], test_s=0.5, total_s=1.2)
    assert time.monotonic() - started < 6
    assert set(verdict.outcomes) == {"timeout"}


async def test_methods_preludes_and_prints(sandbox: Sandbox) -> None:
    code = """
print("hello")
class Solution:
    def halves(self, x: List[int]):
        print(x)
        return [i / 2 for i in x]
"""
    tests = CallTests("halves", (Call(([1, 2],), [0.5, 1]),), prelude="from typing import List")
    assert (await grade(sandbox, tests, code)).is_correct


async def test_programs_guarded_by_main_are_not_run_as_such(sandbox: Sandbox) -> None:
    code = f"{RIGHT}\nif __name__ == '__main__':\n    print(add(int(input()), 1))\n"
    assert (await grade(sandbox, CALLS, code)).is_correct


async def test_types_are_exact_where_the_task_says_so(sandbox: Sandbox) -> None:
    code = "def same(x): return (True, 1.0)"
    calls = (Call((0,), [1, 1]),)
    assert (await grade(sandbox, CallTests("same", calls), code)).is_correct
    exact = CallTests("same", calls, Comparison(exact_types=True))
    verdict = await grade(sandbox, exact, code)
    assert verdict.failure == "test 1 of 1: same(0): wanted [1, 1], got (True, 1.0)"


async def test_forged_replies_are_told_apart(sandbox: Sandbox) -> None:
    forged = "import os\nfor fd in range(3, 16):\n    try: os.write(fd, b'%s')\n    except OSError: pass\n" + RIGHT
    for reply in ("garbage", "t3:i0;s5:valueb3:i3;t3:i0;s5:valueb3:i3;", "t3:i7;s5:valueb3:i3;", "t3:i-1;s5:valueb0:"):
        verdict = await grade(sandbox, CALLS, forged % reply)
        assert set(verdict.outcomes) == {"forged"}, (reply, verdict)


async def test_a_program_cannot_say_that_a_test_passed(sandbox: Sandbox) -> None:
    """It writes replies of every kind itself, among them a failure whose name is "passed"."""
    code = """
import os
from grading.code_values import encode
def add(a, b):
    os.write(1, b"\\n\\0turngym\\0" + encode(%s))
    os._exit(0)
"""
    for reply in (
        '("failed", encode(("passed", "")))',
        '("done", b"")',
        '("value", b"forged")',
        '("raised", encode((["SystemExit", "KeyboardInterrupt", "BaseException"], "")))',
        '("value", encode((3, [1, 2, 3, 4])))',
        "None",
    ):
        for patch in ("os._exit(0)", "import grading.code_unit_solution as s; s._reply = lambda *a: None"):
            verdict = await grade(sandbox, FORMS["cases"], (code % reply).replace("os._exit(0)", patch))
            assert verdict.num_passed == 0, (reply, patch, verdict)


async def test_arguments_changed_in_place_are_changed_in_the_test(sandbox: Sandbox) -> None:
    tests = UnitTests("""
from solution import change
def test_lists():
    inner, outer = [1], [3, 1, 2]
    outer.append(inner)
    assert change(outer) is None
    assert outer == [[1, 9], 2, 1, 3]
def test_dicts_and_sets():
    table, members = {"a": 1, "b": [2]}, {1, 2}
    kept = table["b"]
    change(table); change(members)
    assert table == {"b": [2, 9]} and table["b"] is kept
    assert members == {1, 2, 9}
def test_same_length_keeps_inner_objects():
    inner = [1]
    outer = [inner]
    change(outer)
    assert outer == [[1, 9]] and outer[0] is inner
def test_tuples_stay():
    given = (1, 2)
    change(given)
    assert given == (1, 2)
""")
    code = """
def change(x):
    if isinstance(x, list):
        for i in x:
            if isinstance(i, list): i.append(9)
        x.reverse()
    elif isinstance(x, dict):
        del x["a"]; x["b"].append(9)
    elif isinstance(x, set):
        x.add(9)
"""
    verdict = await grade(sandbox, tests, code, total_s=20)
    assert verdict.is_correct, verdict
    assert verdict.num_tests == 4
    verdict = await grade(sandbox, tests, "def change(x): pass", total_s=20)
    assert verdict.outcomes == ("wrong", "wrong", "wrong", "passed")


async def test_exceptions_are_raised_in_the_test(sandbox: Sandbox) -> None:
    tests = UnitTests("""
import unittest
from solution import fail
class Test(unittest.TestCase):
    def test_builtin(self):
        with self.assertRaisesRegex(KeyError, "seven"): fail("key")
    def test_own(self):
        with self.assertRaises(ValueError): fail("own")
    def test_odd(self):
        with self.assertRaises(ValueError): fail("unicode")
    def test_base(self):
        with self.assertRaises(BaseException): fail("exit")
    def test_dead(self):
        with self.assertRaises(BaseException): fail("dead")
    def test_wrong_kind(self):
        with self.assertRaises(TypeError): fail("key")
    @unittest.skip("not counted")
    def test_skipped(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.assertEqual(fail("none"), 1)
""")
    code = """
import os
class Mine(ValueError): pass
def fail(how):
    if how == "key": raise KeyError("seven")
    if how == "own": raise Mine("x")
    if how == "unicode": "\\ud800".encode()
    if how == "exit": raise SystemExit(0)
    if how == "dead": os._exit(0)
"""
    verdict = await grade(sandbox, tests, code, total_s=20)
    outcomes = ("error", "passed", "exited", "passed", "passed", "passed", "error")
    assert verdict.outcomes == outcomes  # by name: base, builtin, dead, expected, odd, own, wrong_kind


async def test_a_dead_program_is_started_again_for_the_next_test_but_not_for_ever(sandbox: Sandbox) -> None:
    tests = UnitTests("\n".join(f"def test_{i}(): assert candidate({i}) == {i}" for i in range(8)), "f")
    code = "import os\ndef f(x):\n    if x % 2: os._exit(0)\n    return x\n"
    verdict = await grade(sandbox, tests, code, total_s=20)
    assert verdict.outcomes == (
        "passed", "exited", "passed", "exited", "passed", "exited", "exited", "exited",
    )  # fmt: skip
    early = await grade(sandbox, tests, code, stops_early=True, total_s=20)
    assert early.outcomes == ("passed", "exited")


async def test_bare_assertions_are_one_test(sandbox: Sandbox) -> None:
    tests = UnitTests("assert add(1, 2) == 3\nassert add(2, 2) == 4", "add")
    assert (await grade(sandbox, tests, RIGHT)).outcomes == ("passed",)
    verdict = await grade(sandbox, tests, "def add(a, b): return 3")
    assert verdict.outcomes == ("wrong",)
    assert "assert add(2, 2) == 4: AssertionError" in verdict.failure


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("x = 1", "they hold no test"),
        ("assert 1 == 2", "AssertionError"),
        ("import os; os._exit(0)", "ended as 'exited'"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('all')\n    def test_a(self): pass",
            "no test",
        ),
        ("def test_a(): add(print, 1)", "pass an object of type builtin_function_or_method to add"),
        ("def test_a(): add('x' * 600_000, 1)", "bytes to a function"),
    ],
)
async def test_broken_tests_are_no_score(sandbox: Sandbox, source: str, what: str) -> None:
    with pytest.raises(GraderError, match=what):
        await grade(sandbox, UnitTests(source, "add"), RIGHT)


async def test_values_that_jam_the_tests_are_the_programs_fault(sandbox: Sandbox) -> None:
    tests = UnitTests(
        "def test_a():\n    for i in range(add(1, 2)): pass\n    assert i == 2\ndef test_b(): pass", "add"
    )
    verdict = await grade(sandbox, tests, "def add(a, b): return 10 ** 18")
    assert verdict.outcomes == ("timeout",)
    assert (await grade(sandbox, tests, RIGHT)).is_correct


@pytest.mark.parametrize(
    ("source", "returned"),
    [
        ("def test_a(): add([add(1, 2)], 3)", "deep(63)"),
        ("def test_a(): add(add(1, 2) * 3, 3)", "'x' * 300_000"),
        ("def test_a(): add(add(1, 2) ** 0.5, 3)", "-1"),
        ("def test_a(): add(1, 2); import unittest; raise unittest.SkipTest", "3"),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_a(self): add(1, 2); self.skipTest('')", "3"),
    ],
)
async def test_results_cannot_break_the_tests(sandbox: Sandbox, source: str, returned: str) -> None:
    """Else a program that fails could have its attempt left out instead of scored."""
    code = f"def deep(n): return [deep(n - 1)] if n else 0\ndef add(a, b): return {returned}"
    assert (await grade(sandbox, UnitTests(source, "add"), code)).num_passed == 0


@pytest.mark.parametrize("form", FORMS)
async def test_what_is_said_of_a_failure_can_be_shown(sandbox: Sandbox, form: str) -> None:
    for fault in ("raise ValueError('\\ud800' * 5000)", "return '\\ud800' * 5000", "return 10 ** 10_000"):
        verdict = await grade(sandbox, FORMS[form], f"def add(a, b): {fault}")
        assert verdict.num_passed == 0
        assert len(verdict.failure.encode()) < 5000


async def test_output_tests(sandbox: Sandbox) -> None:
    tests = OutputTests((Example("1 2\n", "3\n"), Example("734000 33", "734033")))
    assert (await grade(sandbox, tests, "print(sum(map(int, input().split())))")).is_correct
    verdict = await grade(sandbox, tests, "print(3)")
    assert verdict.outcomes == ("passed", "wrong")
    assert verdict.failure == "test 2 of 2: with the input '734000 33': wanted '734033', got '3\\n'"
    assert (await grade(sandbox, tests, "print(4)", stops_early=True)).outcomes == ("wrong", "not run")
    for code, outcome in {
        "import sys; sys.exit(0)": "wrong",
        "import os; print('3', flush=True); os._exit(1)": "error",
        "while True: pass": "timeout",
        "print('3' * 10**6)": "output",
        "1/0": "error",
        "print('all tests passed')": "wrong",
    }.items():
        verdict = await grade(sandbox, tests, code, total_s=2)
        assert verdict.outcomes == (outcome, outcome), code
    assert "ZeroDivisionError" in (await grade(sandbox, tests, "1/0")).failure


async def test_output_tests_of_another_language(sandbox: Sandbox) -> None:
    tests = OutputTests((Example("b\na\n", "a\nb\n"),))
    assert (await grade(sandbox, tests, "sort", language="bash")).is_correct


async def test_the_time_of_all_runs_is_bounded(unsafe: UnsafeSandbox) -> None:
    tests = OutputTests((Example("", "3"),) * 10)
    verdict = await grade(unsafe, tests, "import time; time.sleep(10)", test_s=0.3, total_s=0.5)
    assert verdict.outcomes == ("timeout",) * 10
    assert unsafe.num_runs == 2


def test_the_first_tests_can_be_public() -> None:
    assert CALLS.first(1).calls == CALLS.calls[:1]
    assert OutputTests((Example("1", "1"), Example("2", "2"))).first(1).num_tests == 1
    with pytest.raises(ConfigError, match="cannot be taken apart"):
        FORMS["check"].first(1)


def test_bad_tests_and_limits_are_refused(unsafe: UnsafeSandbox) -> None:
    with pytest.raises(ConfigError, match="at least one call"):
        CallTests("add", ())
    with pytest.raises(TypeError, match="type object"):
        CallTests("add", (Call((object(),), 1),))
    with pytest.raises(ConfigError, match="at least one input"):
        OutputTests(())
    with pytest.raises(ConfigError, match="no Python"):
        UnitTests("def (")
    for tests in (lambda: CallTests("add", CALLS.calls, prelude="def ("), lambda: UnitTests("", prelude="def (")):
        with pytest.raises(ConfigError, match="the prelude is no Python"):
            tests()
    for name in ("test_s", "total_s", "memory_bytes"):
        with pytest.raises(ConfigError, match=f"{name} must be more than 0"):
            Grading(unsafe, **{name: 0})
