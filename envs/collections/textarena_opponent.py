"""The side that is not trained: a function, one of TextArena's agents, or a model behind a URL."""

import inspect
from collections.abc import Callable
from typing import Protocol

import httpx

from ...errors import ConfigError, EnvError, ToolServerError
from ...registry import import_attribute

TIMEOUT_S = 120.0


class Opponent(Protocol):
    """Plays one game at a time."""

    def begin(self) -> None:
        """Forget the last game."""
        ...

    def answer(self, text: str) -> str:
        """Return a move.

        Args:
            text: What is new since its last turn.
        """
        ...


def load_opponent(name: str, model: str | None) -> Opponent:
    """Return the opponent that a name or URL stands for.

    Raises:
        ConfigError: It is neither, or a function was given with a model.
    """
    if name.startswith(("http://", "https://")):
        return _ServedOpponent(name, model)
    if model is not None:
        raise ConfigError(f"opponent_model {model!r} is for an opponent behind a URL, got {name!r}")
    found = import_attribute(name)
    if inspect.isclass(found):
        found = found()
    if not callable(found):
        raise ConfigError(f"opponent {name!r} is {type(found).__name__}; wanted a function from a text to a move")
    return _FunctionOpponent(name, found)


class _FunctionOpponent:
    """Sees all that its side has seen, and what it said, as TextArena's own agents do."""

    def __init__(self, name: str, function: Callable[[str], object]) -> None:
        self._name = name
        self._function = function
        self._seen = ""

    def begin(self) -> None:
        self._seen = ""

    def answer(self, text: str) -> str:
        self._seen = f"{self._seen}\n\n{text}".strip()
        move = self._function(self._seen)
        if not isinstance(move, str):
            raise EnvError(f"opponent {self._name!r} returned {type(move).__name__}; wanted a text")
        self._seen += f"\n\n[You] {move}"
        return move


class _ServedOpponent:
    """A chat with an OpenAI-compatible server, such as `vllm serve` with an earlier checkpoint."""

    def __init__(self, url: str, model: str | None) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._messages: list[dict[str, str]] = []

    def begin(self) -> None:
        self._messages = []

    def answer(self, text: str) -> str:
        self._messages.append({"role": "user", "content": text})
        try:
            with httpx.Client(timeout=TIMEOUT_S) as client:
                model = self._model or client.get(f"{self._url}/models").raise_for_status().json()["data"][0]["id"]
                body = {"model": model, "messages": self._messages}
                answer = client.post(f"{self._url}/chat/completions", json=body).raise_for_status().json()
            move = answer["choices"][0]["message"]["content"] or ""
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ToolServerError(
                f"the opponent at {self._url} gave no move: {type(error).__name__}: {error}"
            ) from error
        self._model = model
        self._messages.append({"role": "assistant", "content": move})
        return str(move)
