"""Loads environments of the package `verifiers`, once per process, without letting it take over signals."""

import importlib.metadata
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ...errors import ConfigError, UnknownNameError
from .extras import import_extra

_LOADED: dict[tuple[str, str], Any] = {}
_LOADING = threading.Lock()
WANTED = ((0, 1, 9), (0, 1, 10))


def load_env(name: str, env_args: Mapping[str, Any]) -> Any:
    """Return an environment; those of the same arguments are one, since they hold no state of episodes.

    Raises:
        MissingPackageError: The package is not installed.
        UnknownNameError: No installed package is called so.
        ConfigError: The environment cannot be loaded, or is of a kind that cannot be stepped.
    """
    key = (name, json.dumps(env_args, sort_keys=True, default=repr))
    with _LOADING:
        if key not in _LOADED:
            _LOADED[key] = _load(name, dict(env_args))
        return _LOADED[key]


def _load(name: str, env_args: dict[str, Any]) -> Any:
    verifiers = import_extra("verifiers", "verifiers", "verifiers")
    _check_version()
    try:
        with _no_signals():
            env = verifiers.load_environment(name, **env_args)
    except Exception as error:  # the environment's own, or the package's about it
        if isinstance(error.__cause__ or error, ModuleNotFoundError):
            raise UnknownNameError(
                f"unknown environment 'verifiers/{name}': {error}. Install it, as `vf-install` or pip do, or put its "
                "module on the Python path"
            ) from error
        raise ConfigError(f"verifiers/{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(env, verifiers.MultiTurnEnv):
        raise ConfigError(f"verifiers/{name} is {type(env).__name__}; wanted a MultiTurnEnv or one of its kinds")
    if env.message_type != "chat":
        raise ConfigError(f"verifiers/{name} wants bare completions; only chats can be stepped")
    if groups := [
        function.__name__ for rubric in rubrics_of(env.rubric) for function in rubric._get_group_reward_funcs()
    ]:
        raise ConfigError(
            f"verifiers/{name} compares attempts with each other ({', '.join(groups)}); only rewards of one attempt by "
            "itself can be had"
        )
    return env


def rubrics_of(rubric: Any) -> list[Any]:
    """Return a rubric, or all that a group of them holds."""
    return [inner for each in getattr(rubric, "rubrics", ()) for inner in rubrics_of(each)] or [rubric]


def _check_version() -> None:
    version = importlib.metadata.version("verifiers")
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not WANTED[0] <= numbers < WANTED[1]:
        raise ConfigError(
            f"verifiers/... wants the package in version 0.1.9, got {version}: pip install 'turngym[verifiers]'"
        )


@contextmanager
def _no_signals() -> Iterator[None]:
    """Keep its environments from setting signal handlers: those are the run's, and can be set in one thread only."""
    module = import_extra("verifiers.envs.environment", "verifiers", "verifiers")
    names = ("SIGINT", "SIGTERM", "default_int_handler")
    stand_in = SimpleNamespace(signal=lambda *_: None, **{name: getattr(signal, name) for name in names})
    before, module.signal = module.signal, stand_in  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.signal = before  # type: ignore[attr-defined]
