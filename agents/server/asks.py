"""What a session is asked: to answer messages, or to go on from a text."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...envs.messages import Message
from ...errors import EngineError
from ..base import Sampling
from .canonical import Form, Json


class ContextLengthError(EngineError):
    """A prompt leaves no room for an answer."""


@dataclass(frozen=True)
class ChatAsk:
    """A request for answers to messages.

    Attributes:
        messages: The whole history, as `canonical.chat_messages` returns it.
        sampling: How to sample.
        forms: What each message says, where that is known already.
        tools: OpenAI function schemas that the model is told of.
        takes_calls: Whether its calls are read.
        is_parallel: Whether an answer may have several.
        n: How many answers.
        wants_ids: Whether answers hold the prompt's ids.
    """

    messages: list[Message]
    sampling: Sampling
    forms: list[Form] | None = None
    tools: list[Json] | None = None
    takes_calls: bool = True
    is_parallel: bool = True
    n: int = 1
    wants_ids: bool = False


@dataclass(frozen=True)
class TextAsk:
    """A request to go on from a text or from token ids; see `ChatAsk`."""

    prompt: str | NDArray[np.int32]
    sampling: Sampling
    n: int = 1
    wants_ids: bool = False
