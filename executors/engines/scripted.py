"""An engine without a model, for tests: it says what a script says, and fails when the script wants it to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...agents.base import Completion, RequestRefusedError, Sampling, TopLogprobs
from ...agents.images import Images
from ...errors import DeadlineError, EngineDeadError, EngineError, WeightSyncError
from .base import UpdateMode, check_room, check_scorable
from .lockstep import Ask
from .script import SCRIPTED_LOGPROB, Reply, Request, Script, script_of
from .scripted_work import Work
from .toy_policy import ToyPolicy
from .transports import open_bucket
from .version_spans import VersionSpans
from .weights import Bucket, checksum, views

__all__ = ["SCRIPTED_LOGPROB", "Reply", "Request", "Script", "ScriptedEngine"]


class ScriptedEngine:
    """Answers from a script, in this process.

    Args:
        script: A function of the request, or replies to give one after the other. It may raise
            `EngineError` to fail one request, and `EngineDeadError` to fail all from then on. Without
            a script the engine samples from a toy policy, with its true logprobs; that follows all of a
            `Shape` but grammars and bad words, which it refuses.
        max_context: Most tokens of prompt and completion together.
        vocab_size: Of the toy policy, which also answers `score`, whatever the script.
        eos_ids: Ids that end every completion.
        token_latency_s: How long a request takes for each of its tokens.
        pause_timeout_s: How long `pause` waits for running requests.
        scoring_temperature: Of the distribution that `score` answers from.
        keep_requests: Whether `requests` holds every request; it grows without bound.
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
        self._policy = ToyPolicy(vocab_size, eos_ids=eos_ids)
        self._script = script_of(script, self._policy)
        self._max_context = max_context
        self._eos_ids = eos_ids
        self._token_latency_s = token_latency_s
        self._pause_timeout_s = pause_timeout_s
        self._scoring_temperature = scoring_temperature
        self._version = 0
        self._running: set[Work] = set()
        self._is_holding = False
        self._going = asyncio.Event()
        self._going.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._is_dead = False
        self._death = ""
        self._asleep: set[asyncio.Future[bool]] = set()  # requests that wait for their time to pass
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
        return len(self._running)

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Answer one request; see `Generator`."""
        check_room(len(prompt_ids), sampling.max_tokens, self._max_context, request)
        async with self._admitted() as work:
            asked = Request(np.array(prompt_ids, np.int32), sampling, request, self._num_requests, images or ())
            return await self._answer(asked, work)

    async def submit_wave(self, asks: Sequence[Ask]) -> list[asyncio.Task[Completion]]:
        """Submit requests in this order; see `WaveEngine`."""
        await self.health()
        return [
            asyncio.create_task(self.generate(ask.prompt_ids, ask.sampling, ask.images, ask.request)) for ask in asks
        ]

    async def score(self, token_ids: NDArray[np.int32], request: str = "") -> NDArray[np.float32]:
        """Return the toy policy's logprob of each token; see `Scorer`."""
        check_scorable(token_ids, self._max_context, request)
        async with self._admitted() as work:
            work.seconds = self._token_latency_s
            await self._pass(work)
            return self._policy.score(np.asarray(token_ids, np.int32), self._scoring_temperature)

    def kill(self, reason: str = "killed") -> None:
        """Die: running and held requests fail at once, as does everything that comes."""
        self._death = reason
        self._is_dead = True
        self._going.set()
        self._open.set()
        self._wake()

    async def health(self) -> None:
        """Raise `EngineDeadError` if dead."""
        if self._is_dead:
            raise EngineDeadError(f"the scripted engine is gone: {self._death}")

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Hold new requests, and let running ones finish or hold them too; see `EngineControl`."""
        await self.health()
        self._open.clear()
        if mode is not UpdateMode.DRAIN:
            self._hold()
            return
        if self._is_holding and self._running:
            raise EngineError(
                f"{self.num_running} requests are held by an earlier pause and cannot finish; resume first"
            )
        try:
            async with asyncio.timeout(self._pause_timeout_s):
                await self._idle.wait()
        except TimeoutError as error:
            raise DeadlineError(
                f"{self.num_running} requests still run {self._pause_timeout_s} s after the pause"
            ) from error

    async def begin_update(self) -> None:
        """Stage an update; one that was begun and not finished is dropped."""
        await self.health()
        if self._open.is_set() or (self._running and not self._is_holding):
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
        for work in self._running:
            work.spans.cut(work.num_sampled, version)
        self._version = version

    async def resume(self) -> None:
        """Admit requests again, and let time go on for those that were held."""
        await self.health()
        if self._staged is not None:
            raise WeightSyncError("an update was begun and not finished; finish one before resume()")
        self._is_holding = False
        self._going.set()
        self._open.set()

    async def close(self) -> None:
        """Die of its own will."""
        if not self._is_dead:
            self.kill("closed")

    @contextlib.asynccontextmanager
    async def _admitted(self) -> AsyncIterator[Work]:
        """Wait while the engine is paused, and count as running."""
        while not self._open.is_set():
            await self._open.wait()
        work = Work(VersionSpans(self._version))
        self._running.add(work)
        self._idle.clear()
        try:
            yield work
        finally:
            self._running.discard(work)
            if not self._running:
                self._idle.set()

    async def _answer(self, request: Request, work: Work) -> Completion:
        await self.health()
        sampling, request = request.sampling, replace(request, index=self._num_requests)
        self._num_requests += 1
        if self._keep_requests:
            self.requests.append(request)
        try:
            reply = self._script(request)
        except EngineDeadError as error:
            self.kill(str(error))
            raise
        if sampling.num_top_logprobs and reply.top is None:
            raise RequestRefusedError("the script tells no top logprobs; give a Reply with `top`, or ask for none")
        work.num_tokens, stop_reason = reply.cut(sampling, self._eos_ids)
        work.seconds = self._token_latency_s * work.num_tokens if reply.latency_s is None else reply.latency_s
        await self._pass(work)
        end = work.num_tokens
        return Completion(
            token_ids=np.asarray(reply.token_ids, np.int32)[:end],
            logprobs=None if reply.logprobs is None else np.asarray(reply.logprobs, np.float32)[:end],
            versions=work.spans.versions(end) if reply.versions is None else np.asarray(reply.versions, np.int32)[:end],
            stop_reason=stop_reason,
            top=None if reply.top is None else TopLogprobs(reply.top.token_ids[:end], reply.top.logprobs[:end]),
        )

    async def _pass(self, work: Work) -> None:
        """Let the work's time pass on the event loop's clock, unless the engine dies meanwhile."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(0)
        while work.done_s < work.seconds:
            while not self._going.is_set():  # held again, perhaps, before this went on
                await self._going.wait()
            await self.health()
            work.since = clock()
            if await self._slept(work.seconds - work.done_s) and work.since is not None:
                work.done_s = work.seconds  # else it was held in this very moment
            work.advance(clock())
        while not self._going.is_set():
            await self._going.wait()
        await self.health()

    async def _slept(self, seconds: float) -> bool:
        """Sleep; return False if woken before: time stops, or the engine is dead."""
        loop = asyncio.get_running_loop()
        awake: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _settle, awake, True)
        self._asleep.add(awake)
        try:
            return await awake
        finally:
            timer.cancel()
            self._asleep.discard(awake)

    def _wake(self) -> None:
        for awake in self._asleep:
            _settle(awake, False)

    def _hold(self) -> None:
        """Stop the time of all running requests."""
        now = asyncio.get_running_loop().time()
        for work in self._running:
            work.advance(now)
        self._is_holding = True
        self._going.clear()
        self._wake()


def _settle(awake: "asyncio.Future[bool]", has_passed: bool) -> None:
    if not awake.done():
        awake.set_result(has_passed)
