"""The classes that factories make environments of, imported off the event loop and remembered."""

from typing import Any

from ...envs.daemon_threads import DaemonThreads
from .base import AnyEnvClass, known_class, name_of, unwrapped

_IMPORT_TIMEOUT_S = 300.0  # a cold import of heavy libraries from a network folder


class EnvClasses:
    """Finds the class behind a factory."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(2, "turngym-env-import")
        self._known: dict[Any, AnyEnvClass | None] = {}

    async def of(self, factory: object) -> AnyEnvClass | None:
        """Return the class of what a factory makes; None where only calling it would tell.

        Raises:
            DeadlineError: Its module takes too long to import.
            Exception: What importing it raised.
        """
        inner = unwrapped(factory)
        target = getattr(inner, "target", None)
        if not isinstance(target, str):
            return known_class(target if isinstance(target, type) else inner)
        key = (target, getattr(inner, "folder", None))
        if key not in self._known:
            self._known[key] = await self._threads.call(
                known_class,
                inner,
                timeout_s=_IMPORT_TIMEOUT_S,
                what=f"importing {name_of(factory)}",
            )
        return self._known[key]


def family_of(env_class: AnyEnvClass | None, factory: object) -> str:
    """Return the name under which environments share a limit, a breaker and a weight."""
    if isinstance(named := getattr(unwrapped(factory), "family", None), str):
        return named  # a mixture's member
    if env_class is None:
        return name_of(factory)
    own = env_class.family
    return own if isinstance(own, str) else env_class.__name__
