"""`--agent framework:NAME`: agents that are built with a framework, and the names of those that are known.

A framework is a function, plain or asynchronous: `run(build, task, endpoint)` makes its own kind of model that asks the
endpoint, has `build` make the agent with it, runs the agent on the task, and returns what came of it.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

from ...envs.arguments import check_arguments
from ...envs.messages import Message
from ...envs.task import Split, Task
from ...errors import ConfigError, MissingPackageError, TemplateError
from ...registry import Registry
from ..template import text_of
from .base import Endpoint
from .calls import Calls
from .function import bound, load_function, named_parameters, split_concurrency, tasks_beside

Build = Callable[[Any], Any]  # from a framework's model to its agent, or to an awaitable of it
Framework = Callable[[Build, Task, Endpoint], Any]  # what comes of an episode, or an awaitable of it
F = TypeVar("F", bound=Framework)

ENTRY_POINT_GROUP = "turngym.frameworks"
BUILTINS = {
    "autogen": "turngym.agents.frameworks.autogen:run",
    "langgraph": "turngym.agents.frameworks.langgraph:run",
    "openai-agents": "turngym.agents.frameworks.openai_agents:run",
    "smolagents": "turngym.agents.frameworks.smolagents:run",
}
FRAMEWORKS: Registry[Framework] = Registry("agent framework")


def register_framework(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a function `run(build, task, endpoint)` as a framework."""

    def register(run: F) -> F:
        FRAMEWORKS.register(name)(run)
        return run

    return register


class FrameworkAgent:
    """Runs what a user's function builds with a framework.

    Args:
        name: Of the framework.
        kwargs: `entry`: "FILE.py:build" or "module:build", a function from the framework's model to its agent; `score`:
            another one, from the task and what came of the run to a reward; `max_concurrency`; what else `build` takes.
    """

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        own, self.max_concurrency = split_concurrency(kwargs)
        entry, score = own.pop("entry", None), own.pop("score", None)
        if not isinstance(entry, str):
            raise ConfigError(f"--agent framework:{name} needs --agent_args.entry my_agent.py:build, got {entry!r}")
        self._framework = FRAMEWORKS[name]
        self._name = name
        self._entry = entry
        self._build = load_function(entry)
        self._score = None if score is None else load_function(score)
        self._kwargs = own
        self._names = named_parameters(self._build, ("task",))
        first = next(iter(inspect.signature(self._build).parameters), None)
        if first is None or first == "task":
            raise ConfigError(f"{entry!r} wants the framework's model as its first argument: build(model)")
        check_arguments(f"agent {entry!r}", self._build, own, hidden=(first, *self._names))
        self._calls = Calls(self.max_concurrency, "turngym-agent")

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        """Build the agent and run it."""
        given = {"task": task} if self._names else {}

        def build(model: Any) -> Any:
            return self._build(model, **given, **self._kwargs)

        function = bound(self._framework, {"build": build, "task": task, "endpoint": endpoint})
        what = f"agent {self._entry!r} at task {task.id!r}"
        result = await self._calls.call(function, what=what)
        if self._score is None:
            return result
        return await self._calls.call(bound(self._score, {"task": task, "result": result}), what=f"the score of {what}")

    def tasks(self, split: Split, seed: int) -> Sequence[Task] | None:
        """Return what `tasks` of the entry's file gives."""
        return tasks_beside(self._entry, split, seed)

    def complaints(self) -> list[str]:
        """Return that nothing gives a reward, where it looks like that."""
        if self._score is not None or self._name not in BUILTINS:
            return []
        return [
            f"--agent framework:{self._name} returns what its agent said, and hardly a reward; give --agent_args.score "
            "my_agent.py:score, a function score(task, result), or --reward.remote_url"
        ]

    def close(self) -> None:
        """End the loop of coroutines."""
        self._calls.close()


def package(module: str, framework: str) -> Any:
    """Import a package that need not be installed.

    Raises:
        MissingPackageError: It is not; says how to add it.
    """
    try:
        return import_module(module)
    except ImportError as missing:
        raise MissingPackageError(
            f"--agent framework:{framework} needs the package {module!r}: pip install 'turngym[{framework}]' "
            f"({missing})"
        ) from missing


def prompt_text(task: Task) -> str:
    """Return a task's prompt as one text, for frameworks that take no messages.

    Raises:
        ConfigError: It has none, or one that no text can say.
    """
    messages = prompt_messages(task)
    if len(messages) == 1:
        return _said(messages[0], task)
    return "\n\n".join(f"{message['role']}: {_said(message, task)}" for message in messages)


def prompt_messages(task: Task) -> list[dict[str, Any]]:
    """Return a task's prompt as messages.

    Raises:
        ConfigError: It has none.
    """
    if task.prompt is None:
        raise ConfigError(f"task {task.id!r} has no prompt to begin with; give it one, or let the agent read task.data")
    return [{"role": "user", "content": task.prompt}] if isinstance(task.prompt, str) else [*map(dict, task.prompt)]


def _said(message: Mapping[str, Any], task: Task) -> str:
    try:
        return text_of(cast(Message, message)) or ""
    except TemplateError as error:
        raise ConfigError(
            f"the prompt of task {task.id!r} is wanted as text: {error}, or take a framework that is given messages "
            "(langgraph, openai-agents)"
        ) from error


def _register_known() -> None:
    """Register the built-in frameworks and those of installed packages."""
    for name, target in BUILTINS.items():
        FRAMEWORKS.register_lazy(name, target)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            FRAMEWORKS.register_lazy(point.name, point.value)
        except ConfigError as error:
            # One package's mistake must not take every other framework away.
            owner = point.dist.name if point.dist else "an installed package"
            warnings.warn(f"entry point {point.name!r} of {owner} is left out: {error}", stacklevel=2)


_register_known()
