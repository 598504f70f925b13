"""Episodes, the engines they talk to, and what becomes of them; names are imported when first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .episodes.branching import Branching
    from .episodes.limits import Limits
    from .episodes.multi_turn import MultiTurn, SingleTurn
    from .episodes.retry import Executor, retrying, stable_seed
    from .episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
    from .episodes.tree import run_attempts
    from .pools.env_pool import EnvPool
    from .rollouts.buffer import Buffer, Group
    from .store.store import StoredTrajectory, TrajectoryStore

_MODULES = {
    "Branching": "episodes.branching",
    "Buffer": "rollouts.buffer",
    "EndReason": "episodes.trajectory",
    "EnvPool": "pools.env_pool",
    "Executor": "episodes.retry",
    "Failure": "episodes.trajectory",
    "FailureKind": "episodes.trajectory",
    "Group": "rollouts.buffer",
    "Limits": "episodes.limits",
    "MultiTurn": "episodes.multi_turn",
    "SingleTurn": "episodes.multi_turn",
    "StoredTrajectory": "store.store",
    "Trajectory": "episodes.trajectory",
    "TrajectoryStore": "store.store",
    "TurnEnd": "episodes.trajectory",
    "retrying": "episodes.retry",
    "run_attempts": "episodes.tree",
    "stable_seed": "episodes.retry",
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
