"""`CopyText`: repeat a short text; dense rewards let even a tiny random model learn it."""

import string
from typing import Any

from ...errors import ConfigError, EnvError
from ..base import Env, StepResult


class CopyText(Env):
    """Repeat a short random text.

    The reward, 0 to 1, has two halves: the share of characters that belong to the alphabet (which a
    random model finds at once), and the share that are right in their place (which takes copying).
    Characters too many or too few lower both.

    Args:
        alphabet: The characters that texts are made of.
        length: Characters in a text.
    """

    def __init__(self, alphabet: str = string.ascii_lowercase, length: int = 8) -> None:
        if not alphabet or length < 1:
            raise ConfigError(f"CopyText wants an alphabet and a length of 1 or more, got {alphabet!r} and {length}")
        self._alphabet = alphabet
        self._length = length
        self._text: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw a text from the task's seed."""
        self._draw(seed, options)
        self._text = "".join(self._alphabet[i] for i in self.np_random.integers(len(self._alphabet), size=self._length))
        return f"Repeat: {self._text}", {}

    def step(self, action: str) -> StepResult:
        """Compare the action with the text."""
        if self._text is None:
            raise EnvError("CopyText.step was called with no episode running; call reset first")
        text, self._text = self._text, None
        longer = max(len(action), len(text))
        belonging = sum(character in self._alphabet for character in action) / longer
        right = sum(wanted == got for wanted, got in zip(text, action, strict=False)) / longer
        reward = 0.5 * belonging + 0.5 * right
        return "", reward, True, False, {"score": reward, "extra_logs": {"alphabet": belonging, "copied": right}}
