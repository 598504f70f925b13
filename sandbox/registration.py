"""Sandboxes by name, and the one that everything in a process shares."""

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from ..registry import Registry
from .base import Sandbox

SANDBOXES: Registry[type[Sandbox]] = Registry("sandbox")
SANDBOXES.register_lazy("local", "turngym.sandbox.local.backend:LocalSandbox")
SANDBOXES.register_lazy("docker", "turngym.sandbox.docker.backend:DockerSandbox")

_Key = tuple[str, tuple[tuple[str, Any], ...]]  # Any: what a backend's arguments are is its own affair
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, Sandbox]] = WeakKeyDictionary()


def make_sandbox(name: str = "local", arguments: Mapping[str, Any] | None = None) -> Sandbox:
    """Return a new sandbox, not started.

    Args:
        name: A registered name, or "module:Class".
        arguments: For its constructor.

    Raises:
        UnknownNameError: There is none of this name.
        ConfigError: An argument cannot be used.
    """
    return SANDBOXES[name](**(arguments or {}))


async def shared_sandbox(name: str = "local", arguments: Mapping[str, Any] | None = None) -> Sandbox:
    """Return this event loop's sandbox of that name and arguments (hashable ones), started.

    It lives as long as the process: its workers end with it.
    """
    of_loop = _SHARED.setdefault(asyncio.get_running_loop(), {})
    key = (name, tuple(sorted((arguments or {}).items())))
    if key not in of_loop:
        of_loop[key] = make_sandbox(name, arguments)
    await of_loop[key].start()
    return of_loop[key]


async def close_shared() -> None:
    """Close this event loop's shared sandboxes; who asks again gets new ones."""
    for sandbox in _SHARED.pop(asyncio.get_running_loop(), {}).values():
        await sandbox.close()
