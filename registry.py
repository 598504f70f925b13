"""A table from names to things, filled by decorators or by "module:attribute" strings.

Heavy things are registered as strings, so that listing names never imports them.
"""

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar, cast

from .errors import ConfigError, UnknownNameError
from .source_file import import_file

T = TypeVar("T")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' for the closest known name, or the whole list when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(known)}." if known else " None is registered."


def import_attribute(path: str) -> object:
    """Import what a "module:attribute" or "path/to/file.py:attribute" string names.

    Raises:
        ConfigError: The string has another form, or the attribute does not exist. An error inside
            the module is passed on as it is.
    """
    module_name, separator, attribute = path.rpartition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"wanted 'module:attribute', got {path!r}")
    try:
        module = import_file(module_name) if module_name.endswith(".py") else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(f"no module named {module_name!r} (from {path!r}); is it on the Python path?") from error
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise ConfigError(f"{module_name!r} has no {attribute!r}.{nearest(attribute, vars(module))}") from None


def with_absolute_file(name: str) -> str:
    """Return a "path/to/file.py:attribute" string with its path made absolute, and any other name as it is."""
    path, separator, attribute = name.rpartition(":")
    return f"{Path(path).expanduser().resolve()}:{attribute}" if separator and path.endswith(".py") else name


class Registry(Generic[T]):
    """Names of one kind of thing; `kind` appears in error messages ("advantage estimator")."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T | str] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers what it decorates under `name`."""

        def add(thing: T) -> T:
            self._add(name, thing)
            return thing

        return add

    def register_lazy(self, name: str, path: str) -> None:
        """Register a "module:attribute" string, imported when the name is first asked for."""
        self._add(name, path)

    def __getitem__(self, name: str) -> T:
        """Return what `name` stands for; "module:attribute" and "file.py:attribute" need no registration.

        Raises:
            UnknownNameError: Nothing is registered under it; names the nearest.
        """
        if ":" in name and name not in self._entries:
            return cast(T, import_attribute(name))
        try:
            entry = self._entries[name]
        except KeyError:
            raise UnknownNameError(f"unknown {self.kind} {name!r}.{nearest(name, self._entries)}") from None
        if isinstance(entry, str):
            entry = cast(T, import_attribute(entry))
            self._entries[name] = entry
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def _add(self, name: str, entry: T | str) -> None:
        if name in self._entries and self._entries[name] != entry:
            raise ConfigError(f"{self.kind} {name!r} is already registered as {self._entries[name]!r}")
        self._entries[name] = entry
