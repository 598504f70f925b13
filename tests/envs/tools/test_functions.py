import asyncio
import functools
import sys
import threading

import pytest

from turngym.envs.task import Task
from turngym.envs.tools.functions import Functions, as_text
from turngym.errors import ConfigError, EnvError, GraderError, ProgramError, ToolError

TASK = Task("t", prompt="p", label="gold")


class Till(dict):
    """A till that knows its task."""

    closed: list[str] = []

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.label, self.total, self.running = task.label, 0, 0

    def add(self, amount: int) -> int:
        self.running += 1
        assert self.running == 1  # plain methods of one object never run beside each other
        self.total += amount
        self.running -= 1
        return self.total

    async def read(self) -> dict:
        return {"total": self.total, "label": self.label}

    @staticmethod
    def double(amount: int) -> int:
        return 2 * amount

    @property
    def secret(self) -> int:
        raise AssertionError("a property is no tool")

    def _hidden(self) -> None: ...

    def close(self) -> None:
        self.closed.append(self.label)


def opened(*sources):
    return Functions(sources).episode()


async def call(toolbox, name, timeout_s=20.0, **arguments):
    return await toolbox.call(name, arguments, timeout_s)


async def test_public_methods_are_tools_and_each_episode_has_its_own_object():
    functions = Functions([Till])
    assert sorted(schema["function"]["name"] for schema in functions.schemas) == ["add", "double", "read"]
    first, second = functions.episode(), functions.episode()
    await first.open(TASK)
    await second.open(TASK)
    assert await asyncio.gather(*[call(first, "add", amount=1) for _ in range(20)]) == [str(n) for n in range(1, 21)]
    assert await call(first, "read") == '{"total":20,"label":"gold"}'
    assert await call(second, "read") == '{"total":0,"label":"gold"}'
    assert await call(second, "double", amount=4) == "8"
    before = len(Till.closed)
    await first.close()
    assert Till.closed[before:] == ["gold"]
    await second.close()


async def test_functions_run_at_once():
    both = threading.Barrier(2, timeout=20)

    def meet() -> str:
        both.wait()
        return "met"

    toolbox = opened(meet)
    await toolbox.open(TASK)
    assert await asyncio.gather(call(toolbox, "meet"), call(toolbox, "meet")) == ["met", "met"]


async def test_what_takes_too_long_is_given_up_and_said():
    let_go = threading.Event()

    class Slow:
        def wait(self) -> str:
            let_go.wait(20)
            return "late"

        async def sleep(self) -> None:
            await asyncio.sleep(1000)

        async def stubborn(self) -> str:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                return "went on"
            return ""

    toolbox = opened(Slow)
    await toolbox.open(TASK)
    for name in ("wait", "sleep", "stubborn"):
        with pytest.raises(ToolError, match=f"{name} took longer than 0.01 s"):
            await call(toolbox, name, 0.01)
    # The second of two waits for the first, and is not begun when both are out of time.
    held = toolbox._locks[Slow]
    await held.acquire()
    with pytest.raises(ToolError, match="wait was not begun"):
        await call(toolbox, "wait", 0.01)
    let_go.set()


async def test_errors_of_a_tool_go_to_the_model_and_failures_do_not():
    def divide(by: int) -> float:
        return 1 / by

    def leave() -> None:
        sys.exit(3)

    async def leave_too() -> None:
        sys.exit(3)

    def late() -> None:
        raise TimeoutError("the database is slow")

    def told() -> None:
        raise ToolError("ask for less")

    def program() -> None:
        raise ProgramError("no program")

    def lost() -> None:
        raise EnvError("the database is gone")

    async def ungraded() -> None:
        raise GraderError("no verdict")

    toolbox = opened(divide, leave, leave_too, late, told, program, lost, ungraded)
    await toolbox.open(TASK)
    for name, arguments, message in (
        ("divide", {"by": 0}, "ZeroDivisionError: division by zero"),
        ("divide", {"to": 1}, "by is missing"),
        ("devide", {"by": 1}, "There is no tool 'devide'. Did you mean 'divide'?"),
        ("leave", {}, "SystemExit"),
        ("leave_too", {}, "SystemExit"),
        ("late", {}, "TimeoutError: the database is slow"),
        ("told", {}, "ask for less"),
        ("program", {}, "no program"),
    ):
        with pytest.raises(ToolError) as raised:
            await call(toolbox, name, **arguments)
        assert message in str(raised.value)
    with pytest.raises(EnvError):
        await call(toolbox, "lost")
    with pytest.raises(GraderError):
        await call(toolbox, "ungraded")


async def test_a_decorator_may_hide_a_coroutine():
    async def inner(x: int) -> int:
        return x + 1

    @functools.wraps(inner)
    def outer(x: int):
        return inner(x)

    toolbox = opened(outer)
    await toolbox.open(TASK)
    assert await call(toolbox, "inner", x=1) == "2"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": (1, {2})}, '{"a":[1,[2]]}'),
        (float("nan"), "NaN"),
        (object, None),
    ],
)
def test_results_are_text_or_json(value, text):
    assert as_text(value) == (text or "\"<class 'object'>\"")


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        ([], "no tools"),
        ([7], "a function or a class"),
        ([max], "does not say what it takes"),
        ([Till, [Till]], "two tools are called"),
        (["turngym.envs.tools.functions:nothing"], "has no 'nothing'"),
    ],
)
def test_what_is_no_tool_is_refused(sources, told):
    with pytest.raises(ConfigError, match=told):
        Functions(sources)
