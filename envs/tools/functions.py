"""Python functions as a toolbox; those of a class share the state of one episode."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import pydantic_core

from ...errors import ConfigError, DeadlineError, ProgramError, ToolError, TurnGymError
from ...registry import import_attribute
from ..daemon_threads import DaemonThreads
from ..task import Task
from .calls import Schema
from .signature import Signature
from .toolbox import Content, unknown_tool

ToolSource = str | Callable[..., Any]
"""A function, a class, or where to find either: "module:name", "path/to/file.py:name"."""

_THREADS = DaemonThreads(64, "turngym-tool")
_OPEN_TIMEOUT_S = 60.0
_NOT_TOOLS = frozenset({"close"})


@dataclass(frozen=True)
class _Tool:
    """A function, or a method of the class at `owner` in the list of sources."""

    signature: Signature
    function: Callable[..., Any]
    owner: type | None = None


class Functions:
    """Python functions as tools. A class is made anew for each episode, and its public methods are the tools.

    Plain functions run in threads and coroutines on the event loop, all calls of an answer at once; but the plain
    methods of one object run one after the other in the order of their calls, since they share its state.

    Args:
        sources: Functions and classes, or names of some. A class whose constructor has a parameter `task` is given
            the episode's; if it has a method `close`, that is called at the end and is no tool.

    Raises:
        ConfigError: One cannot be a tool, or two have one name.
    """

    def __init__(self, sources: Sequence[ToolSource]) -> None:
        self._tools: dict[str, _Tool] = {}
        self._classes: list[type] = []
        for source in sources:
            self._add(import_attribute(source) if isinstance(source, str) else source)
        if not self._tools:
            raise ConfigError("there are no tools; give functions, or a class with public methods")

    @property
    def schemas(self) -> list[Schema]:
        """What the model is told of them."""
        return [tool.signature.schema for tool in self._tools.values()]

    def episode(self) -> "EpisodeFunctions":
        """Return the toolbox of one episode."""
        return EpisodeFunctions(self._tools, self._classes)

    def _add(self, source: object) -> None:
        if isinstance(source, list | tuple):
            for each in source:
                self._add(each)
        elif isinstance(source, type):
            self._classes.append(source)
            for name in filter(_is_public, dir(source)):
                static = inspect.getattr_static(source, name)
                if isinstance(static, FunctionType | staticmethod | classmethod):  # none of those of a list or a dict
                    skips_first = isinstance(static, FunctionType)
                    self._put(name, getattr(source, name), skips_first=skips_first, owner=source)
        elif callable(source) and getattr(source, "__name__", None):
            self._put(source.__name__, source)  # type: ignore[attr-defined]
        else:
            raise ConfigError(f"a tool is a function or a class with public methods, got {source!r}")

    def _put(
        self, name: str, function: Callable[..., Any], *, skips_first: bool = False, owner: type | None = None
    ) -> None:
        if name in self._tools:
            raise ConfigError(f"two tools are called {name!r}; rename one")
        self._tools[name] = _Tool(Signature(function, name, skips_first=skips_first), function, owner)


class EpisodeFunctions:
    """The toolbox of one episode; see `Functions`.

    Attributes:
        states: The object of each class, for who scores the episode.
    """

    def __init__(self, tools: Mapping[str, _Tool], classes: Sequence[type]) -> None:
        self._tools = tools
        self._classes = classes
        self._locks = {each: asyncio.Lock() for each in classes}
        self.states: dict[type, Any] = {}

    @property
    def schemas(self) -> list[Schema]:
        """What the model is told of them."""
        return [tool.signature.schema for tool in self._tools.values()]

    async def open(self, task: Task) -> None:
        """Make the objects whose methods are tools."""
        for each in self._classes:
            takes_task = "task" in inspect.signature(each).parameters
            make = (lambda each=each: each(task=task)) if takes_task else each
            self.states[each] = await _THREADS.call(make, timeout_s=_OPEN_TIMEOUT_S, what=f"making {each.__name__}")

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Content:
        """Run one call."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(unknown_tool(name, self.schemas))
        given = tool.signature.bind(arguments)
        function = tool.function if tool.owner is None else getattr(self.states[tool.owner], name)
        try:
            if inspect.iscoroutinefunction(function):
                returned = function(**given)
            else:
                returned = await self._in_thread(tool, function, given, timeout_s)
            if inspect.isawaitable(returned):  # decorators hide coroutine functions
                returned = await _awaited(returned, name, timeout_s)
            return as_text(returned)
        except (ToolError, ProgramError) as error:
            raise ToolError(str(error)) from error
        except TurnGymError:
            raise  # what the tool needs has failed, which is not the model's doing
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the objects that can be closed."""
        states, self.states = self.states, {}
        for state in states.values():
            close = getattr(state, "close", None)
            if inspect.iscoroutinefunction(close):
                await close()
            elif close is not None:
                await _THREADS.call(close, timeout_s=_OPEN_TIMEOUT_S, what=f"close of {type(state).__name__}")

    async def _in_thread(
        self, tool: _Tool, function: Callable[..., Any], given: dict[str, Any], timeout_s: float
    ) -> Any:
        name = tool.signature.name
        if tool.owner is None:
            return await _threaded(function, given, name, timeout_s)
        began_at = time.monotonic()
        lock = self._locks[tool.owner]
        try:
            async with asyncio.timeout(timeout_s):
                await lock.acquire()
        except TimeoutError:
            raise ToolError(f"{name} was not begun: the calls before it took {timeout_s:g} s") from None
        try:
            left = max(0.0, timeout_s - (time.monotonic() - began_at))
            return await _threaded(function, given, name, left, deadline_s=timeout_s)
        finally:
            lock.release()


async def _threaded(
    function: Callable[..., Any], given: dict[str, Any], name: str, timeout_s: float, deadline_s: float | None = None
) -> Any:
    try:
        returned = await _THREADS.call(_Outcome.of, function, given, timeout_s=timeout_s, what=name)
    except DeadlineError:
        raise ToolError(_too_long(name, deadline_s or timeout_s)) from None
    return returned.value()


@dataclass(frozen=True)
class _Outcome:
    """What a function returned or raised, so that its own errors are not taken for those of its thread."""

    returned: Any = None
    raised: Exception | None = None

    @classmethod
    def of(cls, function: Callable[..., Any], given: dict[str, Any]) -> "_Outcome":
        try:
            return cls(function(**given))
        except Exception as error:
            return cls(raised=error)

    def value(self) -> Any:
        if self.raised is not None:
            raise self.raised
        return self.returned


async def _awaited(awaitable: Awaitable[Any], name: str, timeout_s: float) -> Any:
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            returned = await awaitable
    except TimeoutError as error:
        if not deadline.expired():
            raise  # its own
        raise ToolError(_too_long(name, timeout_s)) from error
    except SystemExit as error:  # it would end the loop
        raise RuntimeError(f"raised {error!r}") from error
    if deadline.expired():  # it caught the cancellation and went on
        raise ToolError(_too_long(name, timeout_s))
    return returned


def as_text(returned: object) -> str:
    """Return what a model is shown of a value: text as it is, and else JSON."""
    if isinstance(returned, str):
        return returned
    return pydantic_core.to_json(returned, fallback=repr, inf_nan_mode="constants").decode()


def _too_long(name: str, timeout_s: float) -> str:
    return f"{name} took longer than {timeout_s:g} s and was given up"


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in _NOT_TOOLS
