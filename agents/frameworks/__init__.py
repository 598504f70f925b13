"""Users' own agents: functions, commands and frameworks that ask the server for each turn of an episode."""

from typing import TYPE_CHECKING

from ...registry import import_attribute

if TYPE_CHECKING:
    from .base import Endpoint
    from .frameworks import register_framework

_MODULES = {"Endpoint": "base", "register_framework": "frameworks"}

__all__ = ["Endpoint", "register_framework"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_attribute(f"{__name__}.{_MODULES[name]}:{name}")
