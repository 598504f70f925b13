"""Episodes, the engines they talk to, and what becomes of them; names are imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .branching import Branching
    from .buffer import Buffer, Group
    from .env_pool import EnvPool
    from .limits import Limits
    from .multi_turn import MultiTurn, SingleTurn
    from .retry import Executor, retrying, stable_seed
    from .store import StoredTrajectory, TrajectoryStore
    from .trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
    from .tree import run_attempts

_MODULES = {
    "Branching": "branching",
    "Buffer": "buffer",
    "EndReason": "trajectory",
    "EnvPool": "env_pool",
    "Executor": "retry",
    "Failure": "trajectory",
    "FailureKind": "trajectory",
    "Group": "buffer",
    "Limits": "limits",
    "MultiTurn": "multi_turn",
    "SingleTurn": "multi_turn",
    "StoredTrajectory": "store",
    "Trajectory": "trajectory",
    "TrajectoryStore": "store",
    "TurnEnd": "trajectory",
    "retrying": "retry",
    "run_attempts": "tree",
    "stable_seed": "retry",
}

__all__ = [
    "Branching",
    "Buffer",
    "EndReason",
    "EnvPool",
    "Executor",
    "Failure",
    "FailureKind",
    "Group",
    "Limits",
    "MultiTurn",
    "SingleTurn",
    "StoredTrajectory",
    "Trajectory",
    "TrajectoryStore",
    "TurnEnd",
    "retrying",
    "run_attempts",
    "stable_seed",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
