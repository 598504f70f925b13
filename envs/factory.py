"""What makes environments, here or in another process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..registry import import_attribute, nearest
from ..source_file import add_search_folder, import_file
from .arguments import check_arguments
from .base import AsyncEnv, Env, Stateful
from .mixed_tasks import member_of, own_task
from .task import Split, Task


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment per call; small and picklable, it imports the class wherever it is called.

    Attributes:
        spec: What the user wrote, for messages.
        target: "module:Class", "/absolute/file.py:Class", or a class that was registered as such.
        kwargs: Keyword arguments of the class.
        folder: Where the run was started: modules are also looked for there.
        family: Under which name its environments share a limit, a breaker and a weight; by default their class's.
        members: What makes the environments of a mixture, by name; empty for any other.
    """

    spec: str
    target: str | type[Env] | type[AsyncEnv]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None
    family: str | None = None
    members: "Mapping[str, EnvFactory]" = field(default_factory=dict)

    @property
    def env_class(self) -> type[Env] | type[AsyncEnv]:
        """The environment's class, imported if need be."""
        found = self._load() if isinstance(self.target, str) else self.target
        if not (isinstance(found, type) and issubclass(found, Env | AsyncEnv)):
            what = found.__name__ if isinstance(found, type) else type(found).__name__
            raise ConfigError(
                f"{self.spec!r} is {what}, not an environment; wanted a class that inherits turngym.Env "
                "(plain methods) or turngym.AsyncEnv (coroutines)"
            )
        return found

    def __call__(self) -> Env | AsyncEnv:
        """Make an environment."""
        return self.env_class(**self.kwargs)

    @property
    def can_fork(self) -> bool:
        """Whether its environments have a fork of their own; of a mixture's members, whether any has."""
        if self.members:
            return any(member.can_fork for member in self.members.values())
        return self.env_class.fork not in (AsyncEnv.fork, Env.fork)

    @property
    def keeps_state(self) -> bool:
        """Whether its class keeps something beyond episodes (`Stateful`); of a mixture's members, whether any does."""
        if self.members:
            return any(member.keeps_state for member in self.members.values())
        return isinstance(self.env_class, Stateful)

    @property
    def has_tools(self) -> bool:
        """Whether its environments are known to offer tools; others may as well, in `info["tools"]`."""
        from .tools.tool_loop import ToolLoop  # not for environments of others

        if self.members:
            return any(member.has_tools for member in self.members.values())
        return issubclass(self.env_class, ToolLoop)

    @property
    def num_sides(self) -> int:
        """How many episodes one environment is; see `Env.num_sides`. Of a mixture ask its members."""
        return self.env_class.num_sides(self.kwargs)

    def tasks(self, split: Split, seed: int, given: Sequence[Task] | None = None) -> Sequence[Task]:
        """Return the environment's own tasks, or those of a dataset, which are `given`; a mixture may have both."""
        if self.members:
            return self().tasks(split, seed, given)  # type: ignore[call-arg]  # a Mixture's
        return self().tasks(split, seed) if given is None else given

    def for_task(self, task: Task) -> "EnvFactory":
        """Return what makes the environment that a task is for: in a mixture its member's.

        Raises:
            ConfigError: It is for none of the members.
        """
        if not self.members:
            return self
        name = member_of(task.id)
        if name not in self.members:
            raise ConfigError(
                f"task {task.id!r} is for none of the members of {self.spec!r}, which are {', '.join(self.members)}"
            )
        return self.members[name]

    def check_kwargs(self) -> None:
        """Check the keyword arguments against the class's signature.

        Raises:
            ConfigError: One is unknown, missing or of the wrong type.
        """
        check_arguments(f"environment {self.spec!r}", self.env_class, self.kwargs)

    def _load(self) -> object:
        if self.folder is not None:
            add_search_folder(self.folder)
        module_name, _, attribute = str(self.target).rpartition(":")
        if not module_name.endswith(".py"):
            return import_attribute(str(self.target))
        module = import_file(module_name)
        if not hasattr(module, attribute):
            classes = [name for name, value in vars(module).items() if isinstance(value, type)]
            raise ConfigError(f"{module_name!r} has no {attribute!r}.{nearest(attribute, classes)}")
        return getattr(module, attribute)


def for_task(factory: Callable[[], Env | AsyncEnv], task: Task) -> tuple[Callable[[], Env | AsyncEnv], Task]:
    """Return what makes the environment that a task is for, and the task as that environment knows it."""
    if not isinstance(factory, EnvFactory) or not factory.members:
        return factory, task
    return factory.for_task(task), own_task(task)
