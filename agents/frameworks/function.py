"""`--agent func:FILE.py:NAME`: a function that is an agent."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...envs.arguments import check_arguments
from ...envs.task import Split, Task
from ...errors import ConfigError
from ...registry import import_attribute
from .base import MAX_CONCURRENCY, Endpoint
from .calls import Calls

GIVEN = ("task", "base_url", "api_key", "model")


class FunctionAgent:
    """Calls `run(task, base_url, api_key, model)`, plain or asynchronous, with those of the four that it names.

    Args:
        target: "FILE.py:NAME" or "module:NAME".
        kwargs: Its other arguments; `max_concurrency` is for us.
    """

    def __init__(self, target: str, kwargs: Mapping[str, Any]) -> None:
        own, self.max_concurrency = split_concurrency(kwargs)
        self._target = target
        self._function = load_function(target)
        self._kwargs = own
        self._names = named_parameters(self._function, GIVEN)
        if not {"base_url", "api_key"} <= set(self._names):
            takes = ", ".join(inspect.signature(self._function).parameters) or "nothing"
            raise ConfigError(
                f"agent {target!r} takes {takes}; wanted run({', '.join(GIVEN)}): base_url and api_key tell where its "
                "model is"
            )
        check_arguments(f"agent {target!r}", self._function, own, hidden=self._names)
        self._calls = Calls(self.max_concurrency, "turngym-agent")

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        """Call the function."""
        given = {"task": task, **asdict(endpoint)}
        function = bound(self._function, {name: given[name] for name in self._names}, self._kwargs)
        return await self._calls.call(function, what=f"agent {self._target!r} at task {task.id!r}")

    def tasks(self, split: Split, seed: int) -> Sequence[Task] | None:
        """Return what `tasks` of the same file gives."""
        return tasks_beside(self._target, split, seed)

    def complaints(self) -> list[str]:
        """Return none: what the function returns shows when it runs."""
        return []

    def close(self) -> None:
        """End the loop of coroutines."""
        self._calls.close()


def bound(function: Callable[..., Any], *kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function of no arguments, a coroutine function where it was one."""
    given = {name: value for each in kwargs for name, value in each.items()}
    if inspect.iscoroutinefunction(function):

        async def wait() -> Any:
            return await function(**given)

        return wait
    return lambda: function(**given)


def load_function(target: str) -> Callable[..., Any]:
    """Import a function.

    Raises:
        ConfigError: There is none; names the nearest.
    """
    function = import_attribute(target)
    if not callable(function):
        raise ConfigError(f"{target!r} is {type(function).__name__}; wanted a function")
    return function


def named_parameters(function: Callable[..., Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return those of some names that a function takes as keywords."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return tuple(names)
    takes = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    return tuple(name for name in names if name in takes)


def split_concurrency(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return an agent's own arguments, and how many episodes run at once: `max_concurrency` is none of its own."""
    own = dict(kwargs)
    most = own.pop("max_concurrency", MAX_CONCURRENCY)
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ConfigError(f"--agent_args.max_concurrency wants a whole number from 1 on, got {most!r}")
    return own, most


def tasks_beside(target: str, split: Split, seed: int) -> Sequence[Task] | None:
    """Return what `tasks` in the module of a "module:attribute" gives; None where there is none.

    Raises:
        ConfigError: What it gives are no tasks.
    """
    module = import_attribute(f"{target.rpartition(':')[0]}:__dict__")
    function = module.get("tasks") if isinstance(module, dict) else None
    if function is None:
        return None
    given = {"split": split, "seed": seed}
    found = function(**{name: given[name] for name in named_parameters(function, tuple(given))})
    if not isinstance(found, Sequence) or not all(isinstance(each, Task) for each in found[:1]):
        raise ConfigError(f"tasks() beside {target!r} returned {type(found).__name__}; wanted a list of turngym.Task")
    return found
