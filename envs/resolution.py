"""From what `--agent env:SPEC` says to a factory of environments."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import registry as gymnasium_registry

from ..errors import ConfigError, UnknownNameError
from ..registry import nearest
from .factory import EnvFactory
from .members import with_members
from .registration import COLLECTIONS, Collection, GymnasiumEntry, full_id


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
    return with_members(factory)


def find(spec: str, kwargs: dict[str, Any]) -> EnvFactory:
    """Do as `resolve` does, without importing the class or checking the arguments."""
    folder = str(Path.cwd())
    location, colon, attribute = spec.rpartition(":")
    if colon and location.endswith(".py"):
        file = Path(location).expanduser().resolve()
        return EnvFactory(spec, f"{file}:{attribute}", kwargs, folder)
    if spec.endswith(".py"):
        raise ConfigError(f"{spec!r} names a file but no class; write {spec + ':MyEnv'!r}")
    collection_name, slash, name = spec.partition("/")
    if slash and collection_name in COLLECTIONS:  # their names may hold colons
        return _from_collection(spec, COLLECTIONS[collection_name], name, kwargs)
    if colon:
        return EnvFactory(spec, spec, kwargs, folder)
    entry = gymnasium_registry[full_id(spec)]
    target = entry.entry_point.target if isinstance(entry.entry_point, GymnasiumEntry) else entry.entry_point
    return EnvFactory(spec, target, {**entry.kwargs, **kwargs}, folder)  # type: ignore[arg-type]  # env_class checks it


def takes_remote_url(spec: str) -> bool:
    """Say whether the environment leaves its reward to a reward function, `--reward.remote_url`."""
    return "remote_url" in inspect.signature(find(spec, {}).env_class).parameters


def _from_collection(spec: str, collection: Collection, name: str, kwargs: dict[str, Any]) -> EnvFactory:
    if not collection.is_open and name not in (names := list(collection.names())):
        raise UnknownNameError(f"unknown environment {spec!r}.{nearest(name, names)}")
    if collection.parameter in kwargs:
        raise ConfigError(f"environment {spec!r}: {collection.parameter} is already given by its name")
    return EnvFactory(spec, collection.target, {collection.parameter: name, **kwargs}, str(Path.cwd()))


def make(spec: str, **kwargs: Any) -> "gymnasium.Env[Any, str]":
    """Make an environment for a plain Gymnasium loop, from any form that `--agent env:SPEC` takes."""
    from .facade import synchronous

    return synchronous(resolve(spec, kwargs)())
