"""The child's side of environments in processes: each worker calls its environments in its main thread."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from ...envs.base import AsyncEnv, Env
from ...errors import EnvError
from .base import EnvFactory, Kept, bound
from .states import ask_classes, take_states

_envs: dict[int, Env] = {}
_classes: dict[str, type[Env]] = {}  # by the name under which their state is kept


def call(method: str, arguments: bytes) -> Any:
    """Do what the pool asks for; an environment's exit must not be the worker's."""
    try:
        return _METHODS[method](*pickle.loads(arguments))
    except (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError) as error:
        raise EnvError(f"the environment raised {error!r}") from None


def _make(env_id: int, factory: EnvFactory, state_name: str, states: list[Any]) -> tuple[str, bool]:
    """Make an environment; return its class's name and whether it wants queries."""
    if not _classes:
        np.random.seed()  # workers are forks of one process and would all draw the same
    env = factory()
    if isinstance(env, AsyncEnv):
        raise EnvError(
            f"{type(env).__name__} is asynchronous, which only showed when it was made; the factory must be the class "
            "itself or an EnvFactory"
        )
    if state_name not in _classes:
        take_states(type(env), states)
        _classes[state_name] = type(env)
    _envs[env_id] = env
    return type(env).__name__, bool(getattr(env, "wants_query", False))


def _call(env_id: int, method: str, argument: Any) -> object:
    return bound(_envs[env_id], method, argument)()


def _fork(env_id: int, twin_id: int) -> bool:
    """Fork an environment; return whether it can."""
    if not _envs[env_id].can_fork:
        return False
    _envs[twin_id] = _envs[env_id].fork()
    return True


def _close(env_id: int) -> None:
    env = _envs.pop(env_id, None)  # none where it could not be made or forked
    if env is not None:
        env.close()


def _states() -> Kept:
    return ask_classes(_classes)


_METHODS: dict[str, Callable[..., Any]] = {
    "make": _make,
    "call": _call,
    "fork": _fork,
    "close": _close,
    "states": _states,
}
