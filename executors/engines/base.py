"""What a run needs of an engine, beyond generating: scores, control, and weights while it lives."""

# T tokens

from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Generator
from ...errors import EngineError
from ..weights import Bucket


class UpdateMode(StrEnum):
    """What becomes of running requests when weights are updated."""

    DRAIN = "drain"  # they finish first; a completion has one version
    RECOMPUTE = "recompute"  # they stay, and their keys and values are computed anew under the new weights
    KEEP = "keep"  # they stay, with their old keys and values


class Scorer(Protocol):
    """Says how likely given tokens are."""

    @property
    def scoring_temperature(self) -> float:
        """Temperature of the distribution that `score` answers from; the engine is started with it."""
        ...

    async def score(self, token_ids: NDArray[np.int32], request: str = "") -> NDArray[np.float32]:
        """Return the logprob of each token after those before it, over the whole vocabulary.

        Args:
            token_ids: [T], at least 2 and fewer than `max_context`.
            request: A readable name for logs.

        Returns:
            float32 [T], natural log, finite and at most 0; only the first is NaN, since nothing predicts it.

        Raises:
            EngineError: This request cannot be answered.
            EngineDeadError: No request can.
        """
        ...


@runtime_checkable
class EngineControl(Protocol):
    """Pause, receive weights, resume; every call ends within its deadline or raises."""

    @property
    def version(self) -> int:
        """The published weights in use; 0 are those it was started with."""
        ...

    async def health(self) -> None:
        """Return if requests can be answered.

        Raises:
            EngineDeadError: They cannot; the message says why.
        """
        ...

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Let running requests finish, admit no more, and forget cached keys and values."""
        ...

    async def begin_update(self) -> None:
        """Make ready for buckets; the engine must be paused."""
        ...

    async def load_bucket(self, bucket: Bucket) -> int:
        """Load one bucket of weights and return the checksum of the bytes as they arrived."""
        ...

    async def finish_update(self, version: int) -> None:
        """Use the loaded weights from now on, under this version."""
        ...

    async def resume(self) -> None:
        """Admit requests again."""
        ...

    async def close(self) -> None:
        """Stop and leave no process behind; may be called twice."""
        ...


class Engine(Generator, Scorer, EngineControl, Protocol):
    """All sides of an engine."""


def check_scorable(token_ids: NDArray[np.int32], max_context: int, request: str) -> None:
    """Refuse a sequence that `score` cannot answer for.

    Raises:
        EngineError: It is too short or too long.
    """
    if not 2 <= len(token_ids) < max_context:
        raise EngineError(
            f"request {request!r} wants scores of {len(token_ids)} tokens; an engine with a context of {max_context} "
            f"tokens scores from 2 up to {max_context - 1}"
        )
