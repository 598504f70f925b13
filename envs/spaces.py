"""Gymnasium spaces for text and chat, so that environments declare honest spaces."""

from typing import Any

import gymnasium

from ..errors import EnvError
from .messages import Observation, as_messages


class TextSpace(gymnasium.Space[str]):
    """Any string; samples are short printable ASCII."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return up to 16 printable characters."""
        codes = self.np_random.integers(32, 127, size=int(self.np_random.integers(1, 17)))
        return "".join(map(chr, codes))

    def contains(self, x: Any) -> bool:
        """Say whether `x` is a string."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)


class ChatSpace(TextSpace):
    """What a model can be told: a string, a list of messages, or `RawText`."""

    def contains(self, x: Observation | Any) -> bool:
        """Say whether `x` is an observation."""
        try:
            as_messages(x, "space")
        except EnvError:
            return False
        return True
