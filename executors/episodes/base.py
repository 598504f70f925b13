"""What executors need of an agent: a conversation that keeps the tokens."""

from collections.abc import Sequence as Seq
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Sampling
from ...agents.images import Images
from ...agents.sequence import Sequence
from ...envs.base import Action
from ...envs.messages import Message, RawText

Tools = Seq[dict[str, Any]]  # Any: schemas are JSON


class Conversation(Protocol):
    """One episode's context, token for token."""

    @property
    def messages(self) -> list[Message]:
        """The episode as chat so far, assistant turns decoded from their tokens."""
        ...

    def observe(self, observation: list[Message] | RawText, *, is_last: bool = False) -> None:
        """Append what the environment said; only this is tokenised.

        Args:
            observation: New messages, or raw text.
            is_last: No completion follows, so no generation prompt is added.

        Raises:
            TemplateError: The template cannot render the messages.
        """
        ...

    def prompt_ids(self) -> NDArray[np.int32]:
        """Token ids for the next completion, generation prompt included."""
        ...

    def prompt_images(self) -> Images:
        """The images that tokens of the prompt stand for."""
        ...

    def record(self, completion: Completion, sampling: Sampling, *, with_query: bool = False) -> Action:
        """Append what was sampled and return it as the environment's action."""
        ...

    def fork(self) -> "Conversation":
        """Return a conversation that goes on from here, independent of this one; only needed where episodes branch."""
        ...

    def sequences(self) -> tuple[Sequence, ...]:
        """All sequences so far; each sampled token is an action in exactly one."""
        ...


@runtime_checkable
class EndsAtCalls(Protocol):
    """A conversation that knows where the calls of an answer end; asked where an environment wants nothing behind."""

    def end_at_calls(self) -> str | None:
        """Leave what stands behind the last call of an answer out, from now on.

        Returns:
            What would end the sampling of an answer at its first call, as a stop string; None where none does.
        """
        ...


class Agent(Protocol):
    """Starts conversations; one agent serves all episodes of a process."""

    def begin(self, tools: Tools | None = None) -> Conversation:
        """Return a new, empty conversation.

        Args:
            tools: JSON schemas of the functions that the episode's environment offers, for the model to be told of;
                only given where it offers some.
        """
        ...
