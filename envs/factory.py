"""From what `--agent env:SPEC` says to something that makes environments, here or in another process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import registry as gymnasium_registry

from ..errors import ConfigError, UnknownNameError
from ..registry import import_attribute, nearest
from ..source_file import add_search_folder, import_file
from .arguments import check_arguments
from .base import AsyncEnv, Env
from .registration import COLLECTIONS, GymnasiumEntry, full_id
from .task import Split, Task

if TYPE_CHECKING:
    from .registration import Collection


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


def resolve(spec: str, kwargs: Mapping[str, Any] | None = None) -> EnvFactory:
    """Find the environment that `spec` names, and check its keyword arguments.

    Args:
        spec: A registered id with or without namespace and version (`Guess`, `turngym/Guess-v0`),
            `module:Class`, `path/to/file.py:Class`, or `collection/name` (`reasoning_gym/chain_sum`).
        kwargs: Keyword arguments of the environment.

    Raises:
        UnknownNameError: No such environment; names the nearest.
        ConfigError: What was found is no environment, or does not take these arguments.
    """
    factory = find(spec, dict(kwargs or {}))
    factory.check_kwargs()
    return factory


def find(spec: str, kwargs: dict[str, Any]) -> EnvFactory:
    """Do as `resolve` does, without importing the class or checking the arguments."""
    folder = str(Path.cwd())
    location, colon, attribute = spec.rpartition(":")
    if colon and location.endswith(".py"):
        file = Path(location).expanduser().resolve()
        return EnvFactory(spec, f"{file}:{attribute}", kwargs, folder)
    if colon:
        return EnvFactory(spec, spec, kwargs, folder)
    if spec.endswith(".py"):
        raise ConfigError(f"{spec!r} names a file but no class; write {spec + ':MyEnv'!r}")
    collection_name, slash, name = spec.partition("/")
    if slash and collection_name in COLLECTIONS:
        return _from_collection(spec, COLLECTIONS[collection_name], name, kwargs)
    entry = gymnasium_registry[full_id(spec)]
    target = entry.entry_point.target if isinstance(entry.entry_point, GymnasiumEntry) else entry.entry_point
    return EnvFactory(spec, target, {**entry.kwargs, **kwargs}, folder)  # type: ignore[arg-type]  # env_class checks it


def _from_collection(spec: str, collection: "Collection", name: str, kwargs: dict[str, Any]) -> EnvFactory:
    names = list(collection.names())
    if name not in names:
        raise UnknownNameError(f"unknown environment {spec!r}.{nearest(name, names)}")
    if collection.parameter in kwargs:
        raise ConfigError(f"environment {spec!r}: {collection.parameter} is already given by its name")
    return EnvFactory(spec, collection.target, {collection.parameter: name, **kwargs}, str(Path.cwd()))
