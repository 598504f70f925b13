"""What a run needs of an engine, beyond generating: scores, control, and weights while it lives."""

# T tokens

from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Generator
from ...errors import EngineError
from .weights import Bucket


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


class UpdateMode(StrEnum):
    """What becomes of running requests when weights change; new ones wait for `resume` in every mode."""

    DRAIN = "drain"  # they finish first: a completion has one version
    RECOMPUTE = "recompute"  # they stay; their keys and values are computed again under the new weights
    KEEP = "keep"  # they stay with the keys and values they have


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
            EngineDeadError: They cannot, or none has been for too long; the message says why.
        """
        ...

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Hold new requests until `resume`, and do with running ones as the mode says.

        Whatever the mode, no request that begins after an update is served keys and values of older weights.

        Raises:
            EngineError: `DRAIN` after a pause that holds running requests: they cannot finish.
            DeadlineError: Running requests did not finish in time; the engine goes on as if nothing had been asked.
        """
        ...

    async def begin_update(self) -> None:
        """Make ready for buckets; the engine must be paused. An update that was begun and not finished is dropped."""
        ...

    async def load_bucket(self, bucket: Bucket) -> int:
        """Load one bucket of weights and return the checksum of the bytes as they arrived."""
        ...

    async def finish_update(self, version: int) -> None:
        """Use the loaded weights from now on; tokens sampled from now on carry this version, and no earlier ones."""
        ...

    async def resume(self) -> None:
        """Admit requests again, and go on with those that were held.

        Raises:
            WeightSyncError: An update was begun and not finished: nobody can say which weights would sample.
        """
        ...

    async def close(self) -> None:
        """Stop and leave no process behind; may be called twice."""
        ...


class Engine(Generator, Scorer, EngineControl, Protocol):
    """All sides of an engine."""


def check_room(num_prompt: int, max_tokens: int, max_context: int, request: str) -> None:
    """Refuse a request that has no prompt, or no room for its completion.

    Raises:
        EngineError: It says which.
    """
    if num_prompt == 0:
        raise EngineError(f"request {request!r} has an empty prompt; an engine needs at least one token")
    if num_prompt + max_tokens > max_context:
        raise EngineError(
            f"{num_prompt} prompt tokens and {max_tokens} new ones exceed the context of {max_context} tokens; "
            "shorten the prompt or raise --data.max_len"
        )


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
