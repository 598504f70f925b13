"""What a scripted engine is asked and answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...agents.base import Sampling, StopReason, TopLogprobs
from ...agents.images import Images
from ...errors import EngineError
from .toy_policy import ToyPolicy

SCRIPTED_LOGPROB = float(np.log(0.5))  # of tokens whose script gives none


@dataclass(frozen=True)
class Request:
    """What a script may answer."""

    prompt_ids: NDArray[np.int32]
    sampling: Sampling
    name: str
    index: int  # how many requests came before
    images: Images = ()


@dataclass(frozen=True)
class Reply:
    """What a script answers; cut at `max_tokens` and after a stop token as an engine would.

    Attributes:
        token_ids: The completion.
        logprobs: One per token; None is an engine that gives none.
        versions: One per token; by default those the engine had while it took its time for each.
        stop_reason: By default what the limits say.
        latency_s: How long it takes; by default the engine's latency for its tokens.
        top: The likeliest tokens at each place, for requests that ask for them.
    """

    token_ids: ArrayLike
    logprobs: ArrayLike | None
    versions: ArrayLike | None = None
    stop_reason: StopReason | None = None
    latency_s: float | None = None
    top: TopLogprobs | None = None

    def cut(self, sampling: Sampling, eos_ids: tuple[int, ...]) -> tuple[int, StopReason]:
        """Return how many of its tokens an engine would give, and why it would stop there."""
        token_ids = np.asarray(self.token_ids, np.int32)
        stop_ids = (*eos_ids, *sampling.stop_token_ids)
        stops = np.flatnonzero(np.isin(token_ids, stop_ids)) if stop_ids else np.empty(0, np.intp)
        end = min(int(stops[0]) + 1 if len(stops) else len(token_ids), sampling.max_tokens)
        is_cut = end == sampling.max_tokens and not (len(stops) and stops[0] == end - 1)
        return end, self.stop_reason or (StopReason.LENGTH if is_cut else StopReason.STOP)


Script = Callable[[Request], Reply | Sequence[int]]


def script_of(script: Script | Iterable[Reply | Sequence[int]] | None, policy: ToyPolicy) -> Callable[[Request], Reply]:
    """Return a function of the request, whichever way the script was given; without one the policy samples.

    A script sees how it is to sample, shape included, and answers for following it.
    """
    if script is None:
        return lambda request: _sampled(policy, request)
    if callable(script):
        return lambda request: _as_reply(script(request))
    replies = iter(script)

    def next_reply(request: Request) -> Reply:
        for reply in replies:
            return _as_reply(reply)
        raise EngineError(f"the script has no reply for request {request.name!r}, the {request.index + 1}. one")

    return next_reply


def _sampled(policy: ToyPolicy, request: Request) -> Reply:
    token_ids, logprobs = policy.sample(request.prompt_ids, request.sampling)
    return Reply(token_ids, logprobs, top=policy.top(request.prompt_ids, token_ids, request.sampling))


def _as_reply(said: Reply | Sequence[int]) -> Reply:
    return said if isinstance(said, Reply) else Reply(said, np.full(len(said), SCRIPTED_LOGPROB))
