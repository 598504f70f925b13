"""What classes of environments keep beyond their episodes, gathered from all processes and shared out again.

Each process has its own copy of a class, and so a state of its own. A checkpoint holds them side by side, as a list
per family (see `kept_under`). When they are shared out, a process gets none, one or several of them: each exactly
once, so that counts keep their sum when there are more or fewer processes than before.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...envs.base import Stateful
from ...envs.factory import EnvFactory as NamedFactory
from ...errors import EnvError
from .base import EnvFactory, States, unwrapped


def kept_under(factory: EnvFactory, family: str) -> str:
    """Return the name under which is kept what the class of a factory's environments keeps: that of the family.

    Members of a mixture are families of their own and may be of one class, whose state is one, so it is the class's:
    `module:Class` or, wherever the file lies, `file.py:Class`.
    """
    inner = unwrapped(factory)
    if not isinstance(inner, NamedFactory) or inner.family is None:
        return family
    return Path(inner.target).name if isinstance(inner.target, str) else inner.target.__name__


def state_of(env_class: type) -> Any | None:
    """Return what a class keeps; None where it keeps nothing."""
    return env_class.state_dict() if isinstance(env_class, Stateful) else None


def take_states(env_class: type, states: Iterable[Any]) -> None:
    """Give a class what it had kept.

    Raises:
        EnvError: It offers no way to take it.
    """
    for state in states:
        if not isinstance(env_class, Stateful):
            raise EnvError(
                f"a checkpoint holds a state of {env_class.__name__}, which has no state_dict and "
                "load_state_dict; add them, or begin a new run"
            )
        env_class.load_state_dict(state)


def joined(parts: Iterable[States]) -> States:
    """Put the states of several processes or pools side by side."""
    whole: States = {}
    for part in parts:
        for family, states in part.items():
            whole.setdefault(family, []).extend(states)
    return whole


def shared_out(states: States, num_parts: int) -> list[States]:
    """Deal states out to so many processes or pools, as evenly as they go."""
    return [{family: kept[part::num_parts] for family, kept in states.items()} for part in range(num_parts)]


class OwnStates:
    """The states of classes that environments of this process have."""

    def __init__(self) -> None:
        self._classes: dict[str, type] = {}
        self._kept: States = {}

    def introduce(self, family: str, env_class: type) -> None:
        """Give a class what it had kept, when its first environment was made."""
        if family not in self._classes:
            take_states(env_class, self._kept.pop(family, []))
            self._classes[family] = env_class

    def states(self) -> States:
        """Return what the classes keep, and what none has asked for yet."""
        found = {family: state_of(env_class) for family, env_class in self._classes.items()}
        return self._kept | {family: [state] for family, state in found.items() if state is not None}

    def restore(self, states: States) -> None:
        """Keep states for the first environments of their families."""
        self._kept = joined([self._kept, states])
