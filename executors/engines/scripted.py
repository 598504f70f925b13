"""An engine without a model, for tests: it says what a script says, and fails when the script wants it to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ...agents.base import Completion, Sampling, StopReason
from ...errors import DeadlineError, EngineDeadError, EngineError, WeightSyncError
from ..transports import open_bucket
from ..weights import Bucket, checksum, views
from .base import UpdateMode, check_scorable
from .toy_policy import ToyPolicy

SCRIPTED_LOGPROB = float(np.log(0.5))  # of tokens whose script gives none


@dataclass(frozen=True)
class Request:
    """What a script may answer."""

    prompt_ids: NDArray[np.int32]
    sampling: Sampling
    name: str
    index: int  # how many requests came before


@dataclass(frozen=True)
class Reply:
    """What a script answers; cut at `max_tokens` and after a stop token as an engine would.

    Attributes:
        token_ids: The completion.
        logprobs: One per token; None is an engine that gives none.
        versions: One per token; by default the engine's version.
        stop_reason: By default what the limits say.
        latency_s: How long it takes; by default the engine's latency for its tokens.
    """

    token_ids: ArrayLike
    logprobs: ArrayLike | None
    versions: ArrayLike | None = None
    stop_reason: StopReason | None = None
    latency_s: float | None = None


Script = Callable[[Request], Reply | Sequence[int]]


class ScriptedEngine:
    """Answers from a script, in this process.

    Args:
        script: A function of the request, or replies to give one after the other. It may raise
            `EngineError` to fail one request, and `EngineDeadError` to fail all from then on. Without
            a script the engine samples from a toy policy, with its true logprobs.
        max_context: Most tokens of prompt and completion together.
        vocab_size: Of the toy policy, which also answers `score`, whatever the script.
        eos_ids: Ids that end every completion.
        token_latency_s: How long a request takes for each of its tokens.
        pause_timeout_s: How long `pause` waits for running requests.
        scoring_temperature: Of the distribution that `score` answers from.
        keep_requests: Whether `requests` holds every request; without end it grows without bound.
    """

    def __init__(
        self,
        script: Script | Iterable[Reply | Sequence[int]] | None = None,
        *,
        max_context: int = 4096,
        vocab_size: int = 64,
        eos_ids: tuple[int, ...] = (),
        token_latency_s: float = 0.0,
        pause_timeout_s: float = 60.0,
        scoring_temperature: float = 1.0,
        keep_requests: bool = True,
    ) -> None:
        self._policy = ToyPolicy(vocab_size)
        self._script = _as_script(script, self._policy)
        self._max_context = max_context
        self._eos_ids = eos_ids
        self._token_latency_s = token_latency_s
        self._pause_timeout_s = pause_timeout_s
        self._scoring_temperature = scoring_temperature
        self._version = 0
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._is_dead = False
        self._death = ""
        self._asleep: set[asyncio.Future[None]] = set()  # requests that wait for their time to pass
        self._staged: dict[str, torch.Tensor] | None = None
        self._keep_requests = keep_requests
        self._num_requests = 0
        self.requests: list[Request] = []  # those that were admitted
        self.tensors: dict[str, torch.Tensor] = {}  # as the last update left them

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._max_context

    @property
    def version(self) -> int:
        """The published weights in use."""
        return self._version

    @property
    def scoring_temperature(self) -> float:
        """Temperature of the distribution that `score` answers from."""
        return self._scoring_temperature

    @property
    def num_running(self) -> int:
        """Requests that were admitted and not answered."""
        return self._num_running

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: list[Any] | None = None, request: str = ""
    ) -> Completion:
        """Answer one request; see `Generator`."""
        if len(prompt_ids) == 0:
            raise EngineError(f"request {request!r} has an empty prompt; an engine needs at least one token")
        if len(prompt_ids) + sampling.max_tokens > self._max_context:
            raise EngineError(
                f"{len(prompt_ids)} prompt tokens and {sampling.max_tokens} new ones exceed the context of "
                f"{self._max_context} tokens"
            )
        async with self._admitted():
            return await self._answer(np.array(prompt_ids, np.int32), sampling, request)

    async def score(self, token_ids: NDArray[np.int32], request: str = "") -> NDArray[np.float32]:
        """Return the toy policy's logprob of each token; see `Scorer`."""
        check_scorable(token_ids, self._max_context, request)
        async with self._admitted():
            await self._sleep(self._token_latency_s)
            return self._policy.score(np.asarray(token_ids, np.int32), self._scoring_temperature)

    def kill(self, reason: str = "killed") -> None:
        """Die: running and held requests fail at once, as does everything that comes."""
        self._death = reason
        self._is_dead = True
        self._open.set()
        for awake in self._asleep:
            _settle(awake)

    async def health(self) -> None:
        """Raise `EngineDeadError` if dead."""
        if self._is_dead:
            raise EngineDeadError(f"the scripted engine is gone: {self._death}")

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Let running requests finish and hold new ones."""
        await self.health()
        self._open.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), self._pause_timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._num_running} requests still run {self._pause_timeout_s} s after the pause"
            ) from error

    async def begin_update(self) -> None:
        """Stage an update; one that was begun and not finished is dropped."""
        await self.health()
        if self._open.is_set() or self._num_running:
            raise WeightSyncError("an update needs a paused engine; call pause() first")
        self._staged = {}

    async def load_bucket(self, bucket: Bucket) -> int:
        """Copy a bucket's tensors and return the checksum of what came."""
        await self.health()
        if self._staged is None:
            raise WeightSyncError("a bucket came without an update; call begin_update() first")
        buffer = open_bucket(bucket)
        self._staged |= {name: tensor.clone() for name, tensor in views(buffer, bucket.tensors)}
        return checksum(buffer)

    async def finish_update(self, version: int) -> None:
        """Take the staged tensors into use."""
        await self.health()
        if self._staged is None:
            raise WeightSyncError("there is no update to finish; call begin_update() first")
        self.tensors |= self._staged
        self._staged = None
        self._version = version

    async def resume(self) -> None:
        """Admit requests again."""
        await self.health()
        self._open.set()

    async def close(self) -> None:
        """Die of its own will."""
        if not self._is_dead:
            self.kill("closed")

    @contextlib.asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait while the engine is paused, and count as running."""
        while not self._open.is_set():
            await self._open.wait()
        self._num_running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_running -= 1
            if self._num_running == 0:
                self._idle.set()

    async def _answer(self, prompt_ids: NDArray[np.int32], sampling: Sampling, name: str) -> Completion:
        await self.health()
        request = Request(prompt_ids, sampling, name, self._num_requests)
        self._num_requests += 1
        if self._keep_requests:
            self.requests.append(request)
        try:
            said = self._script(request)
        except EngineDeadError as error:
            self.kill(str(error))
            raise
        if not isinstance(said, Reply):
            said = Reply(said, np.full(len(said), SCRIPTED_LOGPROB))
        completion = self._cut(said, sampling)
        await self._sleep(
            self._token_latency_s * len(completion.token_ids) if said.latency_s is None else said.latency_s
        )
        return completion

    async def _sleep(self, seconds: float) -> None:
        """Let time pass, unless the engine dies meanwhile."""
        loop = asyncio.get_running_loop()
        awake = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _settle, awake)
        self._asleep.add(awake)
        try:
            await awake
        finally:
            timer.cancel()
            self._asleep.discard(awake)
        await self.health()

    def _cut(self, reply: Reply, sampling: Sampling) -> Completion:
        token_ids = np.asarray(reply.token_ids, np.int32)
        stop_ids = (*self._eos_ids, *sampling.stop_token_ids)
        stops = np.flatnonzero(np.isin(token_ids, stop_ids)) if stop_ids else np.empty(0, np.intp)
        end = min(int(stops[0]) + 1 if len(stops) else len(token_ids), sampling.max_tokens)
        is_cut = end == sampling.max_tokens and not (len(stops) and stops[0] == end - 1)
        versions = np.full(len(token_ids), self._version) if reply.versions is None else reply.versions
        return Completion(
            token_ids=token_ids[:end],
            logprobs=None if reply.logprobs is None else np.asarray(reply.logprobs, np.float32)[:end],
            versions=np.asarray(versions, np.int32)[:end],
            stop_reason=reply.stop_reason or (StopReason.LENGTH if is_cut else StopReason.STOP),
        )


def _settle(awake: "asyncio.Future[None]") -> None:
    if not awake.done():
        awake.set_result(None)


def _as_script(script: Script | Iterable[Reply | Sequence[int]] | None, policy: ToyPolicy) -> Script:
    if script is None:

        def sample(request: Request) -> Reply:
            return Reply(*policy.sample(request.prompt_ids, request.sampling))

        return sample
    if callable(script):
        return script
    replies = iter(script)

    def next_reply(request: Request) -> Reply | Sequence[int]:
        for reply in replies:
            return reply
        raise EngineError(f"the script has no reply for request {request.name!r}, the {request.index + 1}. one")

    return next_reply
