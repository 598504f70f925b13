"""What makes environments, here or in another process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..registry import import_attribute, nearest
from ..source_file import add_search_folder, import_file
from .arguments import check_arguments
from .base import AsyncEnv, Env
from .task import Split, Task


@dataclass(frozen=True)
class EnvFactory:
    """Makes one environment per call; small and picklable, it imports the class wherever it is called.

    Attributes:
        spec: What the user wrote, for messages.
        target: "module:Class", "/absolute/file.py:Class", or a class that was registered as such.
        kwargs: Keyword arguments of the class.
        folder: Where the run was started: modules are also looked for there.
    """

    spec: str
    target: str | type[Env] | type[AsyncEnv]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

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

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the environment's own tasks."""
        return self().tasks(split, seed)

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
