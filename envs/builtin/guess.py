"""`Guess`: find a secret number by asking; needs several turns and no knowledge."""

import re
from typing import Any

from ...errors import ConfigError, EnvError
from ..base import Env, StepResult

_NUMBER = re.compile(r"-?\d+")


class Guess(Env):
    """Find a secret whole number; each guess is answered with higher or lower.

    The last whole number of the action is the guess. An action without one uses up a guess too, so
    that every episode ends.

    Args:
        low, high: The secret lies between them, both included.
        max_guesses: The task is lost after so many.
        partial: Reward for a last guess that is off, times its closeness (1 at the secret, 0 at the far end).
    """

    def __init__(self, low: int = 1, high: int = 20, max_guesses: int = 6, partial: float = 0.0) -> None:
        if low >= high:
            raise ConfigError(f"Guess wants low < high, got {low} and {high}")
        if max_guesses < 1:
            raise ConfigError(f"Guess wants at least one guess, got max_guesses={max_guesses}")
        if not 0.0 <= partial < 1.0:
            raise ConfigError(f"Guess wants partial in [0, 1), so that a hit is worth most; got {partial}")
        self._low = low
        self._high = high
        self._max_guesses = max_guesses
        self._partial = partial
        self._secret: int | None = None
        self._guesses_left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a secret from the task's seed."""
        self._draw(seed, options)
        self._secret = int(self.np_random.integers(self._low, self._high, endpoint=True))
        self._guesses_left = self._max_guesses
        return (
            f"I am thinking of a whole number from {self._low} to {self._high}. You have {self._max_guesses} guesses. "
            "After each I say higher or lower. Answer with one number only.",
            {},
        )

    def step(self, action: str) -> StepResult:
        """Compare the guess with the secret."""
        if self._secret is None or not self._guesses_left:
            raise EnvError("Guess.step was called with no episode running; call reset first")
        numbers = _NUMBER.findall(action)
        guess = int(numbers[-1]) if numbers and len(numbers[-1]) < 20 else None
        self._guesses_left -= 1
        if guess == self._secret:
            self._guesses_left = 0
            return "Right!", 1.0, True, False, {"score": 1.0}
        if self._guesses_left:
            return f"{self._reply(guess)} {self._guesses_left} left.", 0.0, False, False, {}
        reward = self._partial * self._closeness(guess)
        return f"Out of guesses. It was {self._secret}.", reward, True, False, {"score": reward}

    def _reply(self, guess: int | None) -> str:
        if guess is None:
            return f"I saw no number. Answer with one from {self._low} to {self._high}."
        return "Higher." if guess < (self._secret or 0) else "Lower."

    def _closeness(self, guess: int | None) -> float:
        if guess is None:
            return 0.0
        return max(0.0, 1.0 - abs(guess - (self._secret or 0)) / (self._high - self._low))
