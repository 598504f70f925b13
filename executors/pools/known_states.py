"""What environments of each rollout actor keep, as last known; what takes an actor's place goes on from there."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from .base import Kept, States
from .states import joined


class KnownStates:
    """The states of a fleet's environments, by engine. One thread asks, another makes actors.

    Args:
        say: Where lines for the user go.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._by_engine: dict[int, States] = {}
        self._num_made: Counter[int] = Counter()  # actors of an engine, of which only the last one's answer counts

    @property
    def all(self) -> States:
        """Those of all engines, also of those that are gone, side by side."""
        with self._lock:
            return joined(self._by_engine[engine] for engine in sorted(self._by_engine))

    def names(self, engine: int) -> str:
        """Return whose states are known of an engine."""
        with self._lock:
            return ", ".join(sorted(self._by_engine.get(engine, {}))) or "its class"

    def for_new_actor(self, engine: int) -> States:
        """Return what an actor that is about to be made goes on from; answers of the one before it come too late."""
        with self._lock:
            self._num_made[engine] += 1
            states = self._by_engine.get(engine, {})
        if states:
            names = ", ".join(sorted(states))
            self._say(f"engine {engine}: what {names} keeps goes on from the last checkpoint; what came after is lost")
        return states

    def asked(self) -> Mapping[int, int]:
        """Note, before a question goes out, whom it is asked; `learn` wants it back."""
        with self._lock:
            return dict(self._num_made)

    def learn(self, engine: int, kept: Kept, asked: Mapping[int, int]) -> None:
        """Note what an engine's actor answered, unless another has taken its place."""
        with self._lock:
            if asked.get(engine, 0) == self._num_made[engine]:
                self._by_engine[engine] = kept.states

    def give(self, parts: Mapping[int, States]) -> None:
        """Note what engines are given."""
        with self._lock:
            self._by_engine = dict(parts)
