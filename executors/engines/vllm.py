"""vLLM as an engine, from 0.22 on CUDA to 0.32 on CPU; what touches vLLM itself stands in the `vllm_*` files beside."""

import asyncio
import itertools
import pickle
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Sampling
from ...agents.images import Images
from ...errors import DeadlineError, EngineDeadError, EngineError, WeightSyncError
from .base import UpdateMode, check_room, check_scorable
from .lockstep import Ask
from .version_spans import VersionSpans
from .vllm_adapter import adapter_request
from .vllm_child import VllmChild
from .vllm_config import VllmConfig
from .vllm_requests import completion_of, prompt_of, sampling_params, scores_of, scoring_params
from .weights import Bucket

__all__ = ["VllmConfig", "VllmEngine"]


@dataclass
class _Running:
    """A request that vLLM has."""

    spans: VersionSpans
    is_withdrawn: bool = False  # taken back before its first token, to be submitted again after the update


class VllmEngine:
    """One vLLM engine; its worker runs in a child process that dies with this one."""

    def __init__(self, config: VllmConfig, *, on_gpu: bool) -> None:
        self._config = config
        self._on_gpu = on_gpu
        self._child: VllmChild | None = None
        self._version = 0
        # How often weights changed, whole or in part: requests share cached keys and values only within one number.
        self._num_updates = 0
        self._is_updating = False
        self._is_holding = False
        self._is_pausing = False  # not yet paused
        self._ids = itertools.count()
        self._running: dict[str, _Running] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._control = asyncio.Lock()  # pauses and waves come one after the other

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._config.max_context

    @property
    def version(self) -> int:
        """The published weights in use."""
        return self._version

    @property
    def scoring_temperature(self) -> float:
        """Temperature of the distribution that `score` answers from."""
        return self._config.scoring_temperature

    async def start(self) -> None:
        """Load the model; takes seconds to minutes.

        Raises:
            EngineError: vLLM refused the model or the settings.
        """
        child = self._child = await VllmChild.started(self._config, on_gpu=self._on_gpu)
        child.gone.add_done_callback(lambda _: self._wake_held(child))
        await child.begin()
        await child.call("turngym_skip_ranks")
        await child.call("turngym_spare_seeds")
        if (adapter := self._config.adapter) is not None:
            await child.call("turngym_start_adapter", adapter.rank)
        if self.scoring_temperature != 1.0:
            # vLLM applies a request's temperature to what it samples only, never to the prompt's logprobs.
            await child.call("turngym_divide_logits", self.scoring_temperature)

    async def restart(self) -> None:
        """Kill what is left of the child and start another, at version 0 of the model's files; then bring it weights.

        Requests that ran or were held raise `EngineDeadError`.
        """
        await self._stop(kindly=False)
        self._version = 0
        self._num_updates = 0
        self._is_updating = self._is_holding = False
        await self.start()

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion; see `Generator`."""
        return await self._sample(Ask(prompt_ids, sampling, images, request))

    async def submit_wave(self, asks: Sequence[Ask]) -> list[asyncio.Task[Completion]]:
        """Submit requests in this order, so that none begins before all are there; see `WaveEngine`."""
        while True:
            await self._open.wait()
            async with self._control:
                if not self._open.is_set():
                    continue
                child = self._alive()
                try:
                    await child.hold(forget=False)
                    return [await self._begin(ask) for ask in asks]
                finally:
                    await child.resume()

    async def score(self, token_ids: NDArray[np.int32], request: str = "") -> NDArray[np.float32]:
        """Return the logprob of each token after those before it; see `Scorer`."""
        check_scorable(token_ids, self.max_context, request)
        ask = Ask(token_ids, Sampling(max_tokens=1), request=request)
        output, _ = await self._answer(ask, scoring_params())
        return scores_of(output, token_ids)

    async def health(self) -> None:
        """Raise `EngineDeadError` unless requests can be answered and are."""
        child = self._alive()
        silent_s = asyncio.get_running_loop().time() - child.heard_at
        is_at_work = self._is_pausing or (self._running and not self._is_holding)
        if is_at_work and silent_s > self._config.hang_timeout_s:
            pausing = " and a pause is awaited" if self._is_pausing else ""
            raise EngineDeadError(
                f"no token for {silent_s:.0f} s while {len(self._running)} requests run{pausing}; more than "
                f"--vllm.hang_timeout_s {self._config.hang_timeout_s:g} counts as hung"
            )

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Hold new requests until `resume`, and do with running ones as the mode says; see `EngineControl`."""
        async with self._control:
            child = self._alive()
            if mode is UpdateMode.DRAIN and self._is_holding and self._running:
                raise EngineError(
                    f"{len(self._running)} requests are held by an earlier pause and cannot finish; resume first"
                )
            was_open = self._open.is_set()
            self._open.clear()
            if not self._running or self._is_holding:
                child.heard_at = asyncio.get_running_loop().time()
            self._is_pausing = True
            try:
                if mode is UpdateMode.DRAIN:
                    drain_timeout_s = self._config.drain_timeout_s
                    await child.within(self._idle.wait(), "running requests to finish", drain_timeout_s)
                    await child.drain()
                else:
                    await child.hold(forget=mode is UpdateMode.RECOMPUTE)
                    self._is_holding = True
                    await self._withdraw_unbegun(child)
            except BaseException:  # a cancellation too: nobody would resume it
                if was_open:
                    await self._reopen(child)
                raise
            finally:
                self._is_pausing = False

    async def begin_update(self) -> None:
        """Make the worker ready for buckets."""
        self._alive()
        if self._open.is_set():
            raise WeightSyncError("an update needs a paused engine; call pause() first")
        self._is_updating = True
        self._num_updates += 1
        await self._call("turngym_begin_update" if self._config.adapter is None else "turngym_begin_adapter")

    async def load_bucket(self, bucket: Bucket) -> int:
        """Load one bucket and return the checksum that the workers computed."""
        method = "turngym_load_bucket" if self._config.adapter is None else "turngym_load_adapter_bucket"
        checksums = await self._call(method, pickle.dumps(bucket))
        if len(set(checksums)) != 1:
            raise WeightSyncError(f"the workers of one engine received different bytes: checksums {checksums}")
        return int(checksums[0])

    async def finish_update(self, version: int) -> None:
        """Use the loaded weights from now on, under this version."""
        if (adapter := self._config.adapter) is not None:
            await self._call("turngym_finish_adapter", adapter.rank, adapter.alpha)
        elif missing := sorted(set().union(*await self._call("turngym_finish_update"))):
            raise WeightSyncError(
                f"{len(missing)} parameters of the engine got no weights, among them {missing[:3]}; "
                "do the learner's tensor names match the engine's model?"
            )
        num_sampled = self._alive().num_sampled()
        for request_id, running in self._running.items():
            if request_id in num_sampled:  # the others have finished, and nobody has come for their answer yet
                running.spans.cut(num_sampled[request_id], version)
        self._version = version
        self._is_updating = False

    async def resume(self) -> None:
        """Admit requests again, and go on with those that were held."""
        child = self._alive()
        if self._is_updating:
            raise WeightSyncError("an update was begun and not finished; finish one before resume()")
        async with self._control:
            await child.resume()
            self._is_holding = False
            self._open.set()

    async def close(self) -> None:
        """Stop the child process; may be called twice."""
        await self._stop(kindly=True)

    async def _sample(self, ask: Ask, on_submitted: Callable[[], None] | None = None) -> Completion:
        if self.scoring_temperature != 1.0:
            raise EngineError(f"this engine was started to score at temperature {self.scoring_temperature} only")
        check_room(len(ask.prompt_ids), ask.sampling.max_tokens, self.max_context, ask.request)
        return completion_of(*await self._answer(ask, sampling_params(ask.sampling), on_submitted))

    async def _begin(self, ask: Ask) -> asyncio.Task[Completion]:
        """Return a request's task once vLLM has the request, or once it failed."""
        submitted = asyncio.Event()
        task = asyncio.create_task(self._sample(ask, submitted.set))
        task.add_done_callback(lambda _: submitted.set())
        await submitted.wait()
        return task

    async def _answer(
        self, ask: Ask, params: Any, on_submitted: Callable[[], None] | None = None
    ) -> tuple[Any, VersionSpans]:
        """Return vLLM's last output for one request, and the versions of its tokens."""
        adapter = None if self._config.adapter is None else adapter_request()
        while True:
            async with self._admitted(f"{ask.request}#{next(self._ids)}") as (child, request_id, running):
                prompt = prompt_of(ask.prompt_ids, str(self._num_updates), ask.images)
                output = await child.answer(prompt, params, request_id, adapter, ask.sampling.priority, on_submitted)
            if not running.is_withdrawn:
                return output, running.spans

    @asynccontextmanager
    async def _admitted(self, request_id: str) -> AsyncIterator[tuple[VllmChild, str, _Running]]:
        """Wait while the engine is paused, and count as running."""
        child = self._alive()
        while not self._open.is_set():
            await self._open.wait()
        if child is not self._child or child.gone.done():
            raise EngineDeadError(f"the engine died or was restarted while it held {request_id!r}")
        if not self._running:
            child.heard_at = asyncio.get_running_loop().time()
        running = self._running[request_id] = _Running(VersionSpans(self._version))
        self._idle.clear()
        try:
            yield child, request_id, running
        finally:
            del self._running[request_id]
            if not self._running:
                self._idle.set()

    async def _reopen(self, child: VllmChild) -> None:
        """Take back a pause that failed."""
        if child is self._child and not child.gone.done():
            try:
                await child.resume()
            except DeadlineError as error:
                raise EngineDeadError(f"vLLM could be neither paused nor resumed: {error}") from error
            self._is_holding = False
            self._open.set()

    async def _withdraw_unbegun(self, child: VllmChild) -> None:
        """Take back requests without a token: after the update they begin anew, and read no older keys and values."""
        num_sampled = child.num_sampled()
        unbegun = [request_id for request_id in self._running if num_sampled.get(request_id) == 0]
        for request_id in unbegun:
            self._running[request_id].is_withdrawn = True
        if unbegun:
            await child.withdraw(unbegun)

    def _alive(self) -> VllmChild:
        if self._child is None:
            raise EngineDeadError("the engine is not started, or closed")
        if self._child.gone.done():
            raise EngineDeadError("vLLM is gone; its process died or was killed")
        return self._child

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        return await self._alive().call(method, *arguments)

    async def _stop(self, *, kindly: bool) -> None:
        child, self._child = self._child, None
        self._open.set()
        if child is not None:
            await child.stop(kindly=kindly)

    def _wake_held(self, child: VllmChild) -> None:
        """Let held requests find out that the child is gone."""
        if self._child is child:
            self._open.set()
