"""Environments: what the model is told, what it does, and what that is worth.

Names are imported when first used, so that importing this package stays cheap.
"""

from typing import TYPE_CHECKING

from ..registry import import_attribute

if TYPE_CHECKING:
    from .base import Action, AsyncEnv, Env
    from .checks import check_env
    from .datasets import fingerprint, load_tasks
    from .facade import SyncFacade
    from .factory import EnvFactory
    from .messages import Message, Observation, RawText
    from .problem import Problem
    from .registration import register
    from .resolution import make, resolve
    from .reward import RewardFunction
    from .rewards import load_reward
    from .task import LazyTasks, Split, Task
    from .tools.tool_env import ToolEnv

_MODULES = {
    "Action": "base",
    "AsyncEnv": "base",
    "Env": "base",
    "EnvFactory": "factory",
    "LazyTasks": "task",
    "Message": "messages",
    "Observation": "messages",
    "Problem": "problem",
    "RawText": "messages",
    "RewardFunction": "reward",
    "Split": "task",
    "SyncFacade": "facade",
    "Task": "task",
    "ToolEnv": "tools.tool_env",
    "check_env": "checks",
    "fingerprint": "datasets",
    "load_reward": "rewards",
    "load_tasks": "datasets",
    "make": "resolution",
    "register": "registration",
    "resolve": "resolution",
}

__all__ = [
    "Action",
    "AsyncEnv",
    "Env",
    "EnvFactory",
    "LazyTasks",
    "Message",
    "Observation",
    "Problem",
    "RawText",
    "RewardFunction",
    "Split",
    "SyncFacade",
    "Task",
    "ToolEnv",
    "check_env",
    "fingerprint",
    "load_reward",
    "load_tasks",
    "make",
    "register",
    "resolve",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_attribute(f"{__name__}.{_MODULES[name]}:{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
