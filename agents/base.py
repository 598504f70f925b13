"""What an agent needs of an engine: token ids in, token ids with log-probabilities and versions out."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, EngineError, TrajectoryError
from .images import Images
from .shape import Shape

MOST_TOP_LOGPROBS = 20
"""Of how many tokens beside the sampled one engines tell the logprobs: OpenAI's and vLLM's own limit."""


@dataclass(frozen=True)
class Sampling:
    """How to sample one completion.

    Attributes:
        max_tokens: Most tokens to sample in this completion.
        temperature: 0 is greedy.
        top_p, top_k, min_p: Truncations; 1, -1 and 0 switch them off.
        stop: Strings that end the completion; the tokens that form them are kept.
        stop_token_ids: Further ids that end it, beside the model's own end-of-sequence ids.
        seed: Only for full determinism: per-request seeds slow the engine's sampler.
        priority: Lower ones go first where an engine cannot run all at once; changes nothing of what is sampled.
        shape: What else changes the distribution; None for nothing.
        num_top_logprobs: How many of the likeliest tokens to tell at each place; changes nothing of what is sampled.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    priority: int = 0
    shape: Shape | None = None
    num_top_logprobs: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.temperature < 0:
            raise ConfigError(f"temperature must not be negative, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p}")
        if not 0 <= self.num_top_logprobs <= MOST_TOP_LOGPROBS:
            raise ConfigError(f"num_top_logprobs must lie in [0, {MOST_TOP_LOGPROBS}], got {self.num_top_logprobs}")

    @property
    def is_full_softmax(self) -> bool:
        """Whether its logprobs are those of softmax(logits / temperature) over the whole vocabulary.

        Only these compare with the learner's. A truncation divides by the mass that it keeps, a shape by what it
        leaves, and the learner knows neither.
        """
        is_whole = self.top_p == 1.0 and self.top_k in (-1, 0) and self.min_p == 0.0
        return is_whole and (self.shape is None or self.shape.is_none)


class StopReason(StrEnum):
    """Why an engine stopped sampling."""

    STOP = "stop"  # end of sequence, a stop string or a stop token
    LENGTH = "length"  # max_tokens
    ABORT = "abort"  # cancelled from outside; what was sampled so far is valid


class RequestRefusedError(EngineError):
    """What a request asks for is not to be had of this engine or model, such as this grammar; others are answered."""


@dataclass(frozen=True)
class TopLogprobs:
    """The likeliest tokens at each place of a completion.

    Attributes:
        token_ids: int32 [T, K], the likeliest first.
        logprobs: float32 [T, K], of the distribution sampled from; -inf for what could not come.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True)
class Completion:
    """What an engine sampled: three arrays of one length, and why it stopped.

    Attributes:
        token_ids: int32, as sampled, the stop token included.
        logprobs: float32, natural log, of the distribution really sampled from (after temperature,
            top-p, top-k and the shape; temperature 0 counts as 1). An engine that cannot give them returns
            None, and is refused for training.
        versions: int32, the published weights that sampled each token.
        stop_reason: Why it stopped.
        top: The likeliest tokens, where the sampling asks for them.
    """

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None
    versions: NDArray[np.int32]
    stop_reason: StopReason
    top: TopLogprobs | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.versions)}
        if self.logprobs is not None:
            lengths.add(len(self.logprobs))
        if len(lengths) != 1:
            raise TrajectoryError(
                f"a completion needs one logprob and one version per token, got {len(self.token_ids)} tokens, "
                f"{None if self.logprobs is None else len(self.logprobs)} logprobs, {len(self.versions)} versions"
            )
        if self.logprobs is not None and not np.isfinite(self.logprobs).all():
            bad = int(np.flatnonzero(~np.isfinite(self.logprobs))[0])
            raise TrajectoryError(f"logprob {self.logprobs[bad]} at token {bad} of a completion is not finite")


class Generator(Protocol):
    """The engine as agents see it."""

    @property
    def max_context(self) -> int:
        """Most tokens that prompt and completion may have together."""
        ...

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion.

        Args:
            prompt_ids: Token ids, sent to the model exactly as they are.
            sampling: How to sample.
            images: Those that tokens of the prompt stand for, each with its place.
            request: A readable name (task, attempt, turn) for logs; the engine makes it unique.

        Raises:
            RequestRefusedError: The engine does not sample so.
            EngineError: This request cannot be answered.
            EngineDeadError: No request can.
        """
        ...
