"""TurnGym: a gym for training language models with reinforcement learning over many turns.

Names are imported when first used, so that `import turngym` and `turngym --help` stay fast.
"""

from typing import TYPE_CHECKING

from .envs.plugin import register_when_gymnasium_loads
from .errors import TurnGymError
from .registry import import_attribute

if TYPE_CHECKING:
    from .envs.base import Action, AsyncEnv, Env
    from .envs.messages import Message, RawText
    from .envs.registration import register
    from .envs.resolution import make
    from .envs.task import Task

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AsyncEnv",
    "Env",
    "Message",
    "RawText",
    "Task",
    "TurnGymError",
    "make",
    "register",
]

_MODULES = {
    "Action": "envs.base",
    "AsyncEnv": "envs.base",
    "Env": "envs.base",
    "Message": "envs.messages",
    "RawText": "envs.messages",
    "Task": "envs.task",
    "make": "envs.resolution",
    "register": "envs.registration",
}

register_when_gymnasium_loads()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_attribute(f"{__name__}.{_MODULES[name]}:{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
