"""Test files that hold objects of the program: what they can do with them, and what the program cannot do with that."""

import asyncio

import pytest

from turngym.envs.graders.code import CodeVerdict, Grading
from turngym.envs.graders.code_unit import UnitTests
from turngym.errors import GraderError
from turngym.sandbox.base import Sandbox

from .object_hacks import CLASS_TESTS, OBJECT_HACKS, RIGHT

pytestmark = pytest.mark.slow

SHAPES = """
import collections
import enum

class Point:
    def __init__(self, x, y=0): self.x, self.y = x, y
    def __eq__(self, other): return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
    def __lt__(self, other): return (self.x, self.y) < (other.x, other.y)
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __mul__(self, other): return self.x * other.x + self.y * other.y
    def __repr__(self): return f"Point({self.x}, {self.y})"
    def moved(self, by): return Point(self.x + by, self.y)
    def itself(self): return self
    @staticmethod
    def origin(): return Point(0)
    @property
    def both(self): return (self.x, self.y)

class Pixel(Point):
    colour = "red"

class Shape:
    def __init__(self, points): self.points = points
    def __len__(self): return len(self.points)
    def __iter__(self): return iter(self.points)
    def __getitem__(self, index): return self.points[index]
    def __setitem__(self, index, point): self.points[index] = point
    def __delitem__(self, index): del self.points[index]
    def by_x(self): return {point.x: point for point in self.points}
    def distinct(self): return set(self.points)
    def counted(self): return collections.Counter(point.y for point in self.points)
    def xs(self): yield from (point.x for point in self.points)

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

class Stack(list):
    def push(self, thing): self.append(thing)

class Closed(ValueError): pass
class ShapeError(LookupError): pass

class Door:
    log = []
    def __enter__(self): self.log.append("in"); return self
    def __exit__(self, kind, error, trace): self.log.append(kind.__name__ if kind else "out"); return True
    def fail(self, how): raise {"closed": Closed, "shape": ShapeError, "stop": StopIteration}[how](how)

class Missing: pass
def leftmost(shape): return min(shape.points, key=lambda point: point.x)
def add_to(points, point): points.append(point)
def count_up(n): yield from range(n)
def double(x): return 2 * x
def apply(function, x): return function(x)
"""


async def grade(sandbox: Sandbox, source: str, code: str = SHAPES, **options) -> CodeVerdict:
    options = {"test_s": 10.0, "total_s": 30.0, "memory_bytes": 256 << 20, **options}
    return await UnitTests(source).grade(code, Grading(sandbox, **options))


async def test_what_tests_can_do_with_objects(sandbox: Sandbox) -> None:
    verdict = await grade(
        sandbox,
        """
import unittest
import solution
from solution import Closed, Colour, Door, Pixel, Point, Shape, ShapeError, Stack, add_to, leftmost

def test_attributes_and_methods():
    p = Point(1, y=2)
    assert (p.x, p.y, p.both) == (1, 2, (1, 2)) and type(p.both) is tuple
    p.y = 5
    assert p.moved(2).both == (3, 5)
    assert Point.origin().x == 0 and Pixel.colour == "red"
    del p.y
    assert not hasattr(p, "y") and hasattr(p, "x")
def test_equality_order_and_arithmetic_within_a_class():
    assert Point(1) == Point(1) and Point(1) != Point(2) and not Point(1) != Point(1)
    assert Point(1) != Pixel(1) and Point(1) != (1, 0) and Point(1) != None
    assert Point(1) < Point(2) and sorted([Point(2), Point(1)])[0].x == 1
    assert Point(1) + Point(2) == Point(3) and Point(1, 2) * Point(3, 4) == 11
    assert len({Point(1), Point(1), Point(2)}) == 2 and {Point(1): "a"}[Point(1)] == "a"
def test_identity():
    p = Point(1)
    assert p.itself() is p and Point(1) is not p
def test_text():
    p = Point(1)
    assert (str(p), repr(p), f"{p}") == ("Point(1, 0)",) * 3
def test_objects_as_arguments_and_in_containers():
    a, b = Point(3), Point(1)
    shape = Shape([a, b])
    assert leftmost(shape) is b and shape.points == [a, b]
    assert shape.by_x() == {3: a, 1: b} and shape.distinct() == {a, b}
    points = [a]
    add_to(points, b)
    assert points == [a, b] and points[1] is b
def test_containers():
    shape = Shape([Point(i) for i in range(4)])
    assert len(shape) == 4 and [p.x for p in shape] == [0, 1, 2, 3]
    assert shape[1].x == 1 and [p.x for p in shape[1:3]] == [1, 2] and shape[-1].x == 3
    shape[0] = Point(9)
    del shape[1]
    assert [p.x for p in shape] == [9, 2, 3] and [p.x for p in reversed(shape)] == [3, 2, 9]
    assert Point(9) in shape and Point(8) not in shape and shape and not Shape([])
    assert list(shape.xs()) == [9, 2, 3] and list(solution.count_up(3)) == [0, 1, 2]
    try: shape[7]
    except IndexError: pass
    else: assert False
def test_classes():
    assert isinstance(Pixel(1), Point) and not isinstance(Point(1), Pixel) and not isinstance(3, Point)
    assert issubclass(Pixel, Point) and not issubclass(int, Point)
    assert [c.name for c in Colour] == ["RED", "BLUE"] and Colour.RED is Colour["RED"] and Colour(2) == Colour.BLUE
def test_classes_that_extend_a_list():
    stack = Stack([1])
    stack.push(2)
    assert Shape([Point(1), Point(2)]).counted() == {0: 2}  # as data, where it is no instance that the test made
    assert list(stack) == [1, 2] and stack.pop() == 2 and len(stack) == 1
def test_blocks():
    with Door() as door: pass
    assert door.log[-2:] == ["in", "out"]
    try:
        with Door() as door: raise KeyError("what it says")
    except KeyError: pass
    else: assert False, "swallowed"
    assert door.log[-1] == "KeyError"
    try:
        with Door(): assert 1 == 2
    except AssertionError: pass
    else: assert False, "swallowed"
    assert door.log[-1] == "out"
class ExceptionTest(unittest.TestCase):
    def test_own(self):
        with self.assertRaisesRegex(ShapeError, "shape"): Door().fail("shape")
        with self.assertRaises(LookupError): Door().fail("shape")
        with self.assertRaises(ValueError): Door().fail("closed")
    def test_not_that(self):
        try: Door().fail("closed")
        except ShapeError: self.fail()
        except ValueError: pass
def test_functions_as_arguments():
    assert solution.apply(solution.double, 4) == 8 and solution.apply(Point, 4).x == 4
def test_a_docstring_is_the_programs():
    assert Point.__doc__ is None and Point(1).__doc__ is None
""",
    )
    assert verdict.is_correct, verdict
    assert verdict.num_tests == 13


async def test_without_a_class_by_name_objects_stay_away(sandbox: Sandbox) -> None:
    """A function that should give data cannot give an object with methods that say what the test wants to hear."""
    code = "class Always:\n    startswith = issubset = index = count = lambda *a: True\n    __len__ = lambda s: 1\n"
    for source in ("f().startswith('expected')", "f().issubset({1, 2})", "f().count('x')", "f()"):
        for returned in ("Always()", "[Always()]", "(x for x in 'x')"):
            verdict = await grade(sandbox, f"from solution import f\nassert {source}", f"{code}f = lambda: {returned}")
            assert verdict.outcomes == ("not data",), (source, returned, verdict)


async def test_functions_are_arguments_also_where_no_class_is_named(sandbox: Sandbox) -> None:
    source = "from solution import apply, double\nassert apply(double, 4) == 8"
    assert (await grade(sandbox, source)).is_correct


async def test_keywords_may_have_any_name(sandbox: Sandbox) -> None:
    names = ("self", "operation", "target", "function", "name", "args", "kwargs", "request")
    keywords = ", ".join(f"{name}={number}" for number, name in enumerate(names))
    source = f"from solution import f, Caller\nassert f({keywords}) == 28 and Caller().call({keywords}) == 28"
    code = (
        "def f(**given): return sum(given.values())\nclass Caller:\n    def call(me, /, **given): return f(**given)\n"
    )
    verdict = await grade(sandbox, source, code)
    assert verdict.is_correct, verdict


async def test_object_hacks_score_nothing(sandbox: Sandbox) -> None:
    assert (await grade(sandbox, CLASS_TESTS, RIGHT)).is_correct
    verdicts = await asyncio.gather(
        *(grade(sandbox, CLASS_TESTS, code, test_s=0.5, total_s=6) for code in OBJECT_HACKS.values())
    )
    for hack, verdict in zip(OBJECT_HACKS, verdicts, strict=True):
        assert verdict.num_passed == 0, (hack, verdict)
        assert verdict.failure, hack


@pytest.mark.parametrize(
    "source",
    [
        "assert all(map(f, [2, 3, 5]))",
        "for got, wanted in zip(map(f, [2, 3]), [True, True]): assert got == wanted",
        "assert list(map(f, [])) == [] and [x for x in map(f, [2, 3])] == []",
    ],
)
async def test_a_program_does_not_end_the_loops_of_tests(sandbox: Sandbox, source: str) -> None:
    verdict = await grade(sandbox, f"from solution import f\n{source}", "def f(x): raise StopIteration")
    assert verdict.outcomes == ("error",)
    assert "StopIteration" in verdict.failure


async def test_what_is_expected_is_not_told_to_objects(sandbox: Sandbox) -> None:
    """Neither comparisons nor failing blocks show them an expected value."""
    code = """
class Spy:
    seen = []
    def _look(self, *args): self.seen.append(repr(args)); return False
    __eq__ = __ne__ = __lt__ = __gt__ = __sub__ = __rsub__ = __add__ = __contains__ = __exit__ = _look
    __hash__ = lambda self: 0
    def __iter__(self): return iter([])
    def __enter__(self): return self
    def told(self): return any("7340" in text for text in self.seen)
"""
    source = """
from solution import Spy
def test_spy():
    spy = Spy()
    for attempt in (
        lambda: spy == 734033, lambda: 734033 == spy, lambda: spy != 734033, lambda: spy < 734033, lambda: 734033 < spy,
        lambda: spy - 734033, lambda: 734033 - spy, lambda: spy + 734033, lambda: 734033 in spy,
        lambda: spy in [734033], lambda: {734033: 1}.get(spy), lambda: fail_within(spy), lambda: [spy] == [734033],
    ):
        try: attempt()
        except (AssertionError, TypeError): pass
    assert spy.told() is False and len(spy.seen) == 1
def fail_within(spy):
    with spy: assert spy == 734033, "not 734033"
"""
    assert (await grade(sandbox, source, code)).is_correct


async def test_objects_of_a_program_that_died_are_gone(sandbox: Sandbox) -> None:
    code = "import os\nclass Point:\n    def __init__(self, x): self.x = x\n    def die(self): os._exit(0)\n"
    source = """
from solution import Point
kept = Point(1)
def test_a(): assert kept.x == 1
def test_b(): kept.die()
def test_c():
    other = Point(5)
    assert kept.x == 5
def test_d(): assert Point(2).x == 2
"""
    verdict = await grade(sandbox, source, code)
    assert verdict.outcomes == ("passed", "exited", "error", "passed")


async def test_forged_references_are_told_apart(sandbox: Sandbox) -> None:
    code = """
import os
from grading.code_values import encode
class Point:
    def __init__(self, x): pass
    def x(self):
        os.write(1, b"\\n\\0turngym\\0" + encode(("value", %s)))
        os._exit(0)
import grading.code_unit_solution as s
"""
    patch = "def reply(kind, payload): os.write(1, b'\\n\\0turngym\\0' + encode(('value', %s)))\ns._reply = reply\n"
    for payload in ("b't2:o5:PointN'", "b't2:o0:N'", "b't2:o9:#N'", "b't2:o2:#1'", "b't2:e2:o2:#1o2:#2N'"):
        source = "from solution import Point\nassert Point(1).x() == 3"
        verdict = await grade(sandbox, source, code % "b''" + patch % payload, test_s=1)
        assert verdict.num_passed == 0, (payload, verdict)
        verdict = await grade(sandbox, "from solution import f\nassert f(1) == 3", code % "b''" + patch % payload)
        assert verdict.outcomes == ("forged",), (payload, verdict)


async def test_classes_that_are_missing_are_the_programs_fault(sandbox: Sandbox) -> None:
    verdict = await grade(sandbox, "from solution import Point\ndef test_a(): assert Point(1).x == 1", "x = 1")
    assert verdict.outcomes == ("error",)
    assert "NameError: the code defines no 'Point'" in verdict.failure


async def test_classes_cannot_be_extended_in_tests(sandbox: Sandbox) -> None:
    with pytest.raises(GraderError, match="cannot be run"):
        await grade(sandbox, "from solution import Point\nclass P(Point): pass\ndef test_a(): P(1)")


async def test_endless_objects_run_into_the_limit(sandbox: Sandbox) -> None:
    code = "import itertools\nclass Endless:\n    def __iter__(self): return itertools.count()\n"
    verdict = await grade(
        sandbox, "from solution import Endless\ndef test_a(): assert -1 in Endless()", code, test_s=0.5
    )
    assert verdict.outcomes == ("timeout",)
