"""An engine under test, and how its checks ask it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Sampling
from .base import Engine
from .weights import Bucket


@dataclass(frozen=True)
class Probe:
    """An engine under test and what is asked of it.

    Attributes:
        tolerance: How far two logprobs of the same token in the same context may lie apart.
        hold_s: How long a paused engine is watched for answers that it must not give.
    """

    engine: Engine
    vocab_size: int
    buckets: Sequence[Bucket]
    tolerance: float
    timeout_s: float
    hold_s: float

    def prompt(self, index: int, length: int = 12) -> NDArray[np.int32]:
        """Return a prompt of random ids, another one for each index."""
        return np.random.default_rng(index).integers(0, self.vocab_size, length, dtype=np.int32)

    async def ask(self, prompt_ids: NDArray[np.int32], max_tokens: int, temperature: float = 0.0) -> Completion:
        """Generate; greedy by default."""
        return await self.engine.generate(prompt_ids, Sampling(max_tokens, temperature=temperature), request="check")


def first_logprob(completion: Completion, index: int = 0) -> float:
    """Return the logprob at `index`, NaN where there is none; NaN fails no comparison here."""
    if completion.logprobs is None or len(completion.logprobs) <= index:
        return float("nan")
    return float(completion.logprobs[index])
