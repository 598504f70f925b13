"""What classes of environments keep beyond their episodes, gathered from all processes and shared out again.

Each process has its own copy of a class, and so a state of its own. A checkpoint holds them side by side, as a list
per family (see `kept_under`). When they are shared out, a process gets none, one or several of them: each exactly
once, so that counts keep their sum when there are more or fewer processes than before.
"""

import asyncio
import pickle
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...envs.base import Stateful
from ...envs.factory import EnvFactory as NamedFactory
from ...errors import EnvError
from .base import EnvFactory, Kept, States, in_background, known_class, unwrapped

STATE_TIMEOUT_S = 60.0  # that an environment's `state_dict` may take before what runs it is given up


def kept_under(factory: EnvFactory, family: str) -> str:
    """Return the name under which is kept what the class of a factory's environments keeps: that of the family.

    Members of a mixture are families of their own and may be of one class, whose state is one, so it is the class's:
    `module:Class` or, wherever the file lies, `file.py:Class`.
    """
    inner = unwrapped(factory)
    if not isinstance(inner, NamedFactory) or inner.family is None:
        return family
    return Path(inner.target).name if isinstance(inner.target, str) else inner.target.__name__


def may_keep_state(factory: EnvFactory) -> bool:
    """Whether a factory's environments are of a class that keeps something, or only making one would tell."""
    env_class = known_class(unwrapped(factory))
    return env_class is None or isinstance(env_class, Stateful)


def state_of(env_class: type) -> Any | None:
    """Return what a class keeps, as a copy that can travel; None where it keeps nothing."""
    return pickle.loads(pickle.dumps(env_class.state_dict())) if isinstance(env_class, Stateful) else None


def ask_classes(classes: Mapping[str, type]) -> Kept:
    """Ask classes of this process what they keep; the error of one is no reason to lose what the others keep."""
    states: States = {}
    complaints: list[str] = []
    for name, env_class in classes.items():
        try:
            state = state_of(env_class)
        except Exception as error:
            complaints.append(complaint(name, f"its state_dict raised {error!r}"))
        else:
            states |= {} if state is None else {name: [state]}
    return Kept(states, tuple(complaints))


def complaint(name: str, why: str) -> str:
    """Say whose state could not be had."""
    return f"what {name} keeps could not be had, and stays as it was last known: {why}"


async def in_time(asks: Sequence[tuple[str, Awaitable[Sequence[str]]]], timeout_s: float) -> tuple[str, ...]:
    """Await questions for states, all at once, and return what there is to complain of.

    Args:
        asks: Whose state is asked for, and the question, which notes the answer and returns complaints of its own. One
            that is late goes on, and its answer is noted when it comes.
        timeout_s: For all of them.
    """
    tasks = [(name, in_background(ask)) for name, ask in asks]
    if tasks:
        await asyncio.wait([task for _, task in tasks], timeout=timeout_s)
    complaints: list[str] = []
    for name, task in tasks:
        if not task.done():
            complaints.append(complaint(name, f"there was no answer within {timeout_s:g} s"))
        elif (error := task.exception()) is not None:
            complaints.append(complaint(name, str(error) or repr(error)))
        else:
            complaints += task.result()
    return tuple(complaints)


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
        self._kept: States = {}  # as last known, or as earlier processes left it for classes that are not here yet

    def introduce(self, family: str, env_class: type) -> None:
        """Give a class what it had kept, when its first environment was made."""
        if family not in self._classes:
            take_states(env_class, self._kept.get(family, []))
            self._classes[family] = env_class

    @property
    def keepers(self) -> list[str]:
        """Whose classes keep something."""
        return [family for family, env_class in self._classes.items() if isinstance(env_class, Stateful)]

    @property
    def known(self) -> States:
        """What the classes keep as far as known, and what none has asked for yet."""
        return dict(self._kept)

    def learn(self, family: str) -> tuple[str, ...]:
        """Ask a class what it keeps; return complaints."""
        kept = ask_classes({family: self._classes[family]})
        self._kept |= kept.states
        return kept.complaints

    def restore(self, states: States) -> None:
        """Keep states for the first environments of their families."""
        self._kept = joined([self._kept, states])
