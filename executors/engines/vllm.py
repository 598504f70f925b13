"""vLLM as an engine: one adapter for 0.22 on CUDA and 0.32 on CPU; all that differs stands here."""

import asyncio
import itertools
import os
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Sampling
from ...errors import DeadlineError, EngineDeadError, EngineError, WeightSyncError
from ..weights import Bucket
from .base import UpdateMode, check_scorable
from .vllm_adapter import Adapter, adapter_request
from .vllm_requests import completion_of, sampling_params, scores_of, scoring_params

# Set before vLLM is imported. On two cores the worker inside EngineCore is twice as fast as beside it,
# and tracing costs the first request up to 16 s.
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "TOKENIZERS_PARALLELISM": "false",
}
HEALTH_POLL_S = 1.0
CAPTURE_SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]


@dataclass(frozen=True)
class VllmConfig:
    """What an engine is started with."""

    model: str
    dtype: str  # "bfloat16", "float16", "float32"
    max_context: int
    max_num_seqs: int = 256
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    kv_cache_gib: float = 0.5
    seed: int = 0
    num_threads: int = 1  # on CPU
    sync_timeout_s: float = 300.0
    adapter: Adapter | None = None  # None: updates bring all weights
    max_batched_tokens: int | None = None  # computed at once; by default as vLLM chooses
    scoring_temperature: float = 1.0  # any other makes an engine that only scores


class VllmEngine:
    """One vLLM engine; its worker runs in a child process that dies with this one."""

    def __init__(self, config: VllmConfig, *, on_gpu: bool) -> None:
        self._config = config
        self._on_gpu = on_gpu
        self._engine: Any = None  # Any: vLLM's AsyncLLM, imported when started
        self._version = 0
        self._ids = itertools.count()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()

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
        os.environ.update(ENVIRONMENT)
        if not self._on_gpu:
            os.environ.update(CPU_ENVIRONMENT, OMP_NUM_THREADS=str(self._config.num_threads))
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._arguments()))
        except Exception as error:
            raise EngineError(f"vLLM could not start with {self._config.model!r}: {error}") from error
        if self.scoring_temperature != 1.0:
            # vLLM applies a request's temperature to what it samples only, never to the prompt's logprobs.
            await self._call("turngym_divide_logits", self.scoring_temperature)

    async def generate(
        self,
        prompt_ids: NDArray[np.int32],
        sampling: Sampling,
        images: list[Any] | None = None,
        request: str = "",
    ) -> Completion:
        """Sample one completion; see `Generator`."""
        if images:
            raise EngineError("images are not supported by this engine yet; use a text environment")
        if self.scoring_temperature != 1.0:
            raise EngineError(f"this engine was started to score at temperature {self.scoring_temperature} only")
        if len(prompt_ids) == 0:
            raise EngineError(f"request {request!r} has an empty prompt; an engine needs at least one token")
        if len(prompt_ids) + sampling.max_tokens > self.max_context:
            raise EngineError(
                f"{len(prompt_ids)} prompt tokens and {sampling.max_tokens} new ones exceed the context of "
                f"{self.max_context} tokens; shorten the prompt or raise --data.max_len"
            )
        async with self._admitted():
            version = self._version
            return completion_of(
                await self._answer(prompt_ids, sampling_params(sampling), request, sampling.priority), version
            )

    async def score(self, token_ids: NDArray[np.int32], request: str = "") -> NDArray[np.float32]:
        """Return the logprob of each token after those before it; see `Scorer`."""
        check_scorable(token_ids, self.max_context, request)
        async with self._admitted():
            return scores_of(await self._answer(token_ids, scoring_params(), request), token_ids)

    async def health(self) -> None:
        """Raise `EngineDeadError` unless requests can be answered."""
        if self._engine is None:
            raise EngineDeadError("the engine is not started, or closed")
        try:
            await self._engine.check_health()
        except Exception as error:
            raise EngineDeadError(f"vLLM is gone: {error}") from error

    async def pause(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Let running requests finish, admit no more, and forget cached keys and values.

        A completion therefore never mixes two versions.
        """
        self._open.clear()
        await self._within(self._idle.wait(), "running requests to finish")
        await self._within(self._engine.pause_generation(mode="wait", clear_cache=True), "the pause")

    async def begin_update(self) -> None:
        """Make the worker ready for buckets."""
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
            await self._call("turngym_finish_adapter", version, adapter.rank, adapter.alpha)
            self._version = version
            return
        missing = sorted(set().union(*await self._call("turngym_finish_update")))
        if missing:
            raise WeightSyncError(
                f"{len(missing)} parameters of the engine got no weights, among them {missing[:3]}; "
                "do the learner's tensor names match the engine's model?"
            )
        self._version = version

    async def resume(self) -> None:
        """Admit requests again."""
        await self._within(self._engine.resume_generation(), "the resume")
        self._open.set()

    async def close(self) -> None:
        """Stop the child process; may be called twice."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)

    async def restart(self) -> None:
        """Stop what is left of a dead engine and start anew, at version 0, with the weights of the model's files."""
        await self.close()
        self._version = 0
        await self.start()

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        """Wait while the engine is paused, and count as running."""
        while not self._open.is_set():
            await self._open.wait()
        if self._engine is None:
            raise EngineDeadError("the engine is not started, or closed")
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _answer(self, prompt_ids: NDArray[np.int32], params: Any, request: str, priority: int = 0) -> Any:
        """Return vLLM's last output for one request."""
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        request_id = f"{request}#{next(self._ids)}"
        final = None
        try:
            async for output in self._engine.generate(
                {"prompt_token_ids": prompt_ids.tolist()},
                params,
                request_id,
                priority=priority,
                lora_request=None if self._config.adapter is None else adapter_request(self._version),
            ):
                final = output
        except VllmDeadError as error:
            raise EngineDeadError(f"vLLM died while answering {request_id!r}: {error}") from error
        except (ValueError, VLLMValidationError) as error:  # the latter is a ValueError up to 0.22 only
            raise EngineError(f"vLLM refused {request_id!r}: {error}") from error
        if final is None:
            raise EngineError(f"vLLM gave no output for {request_id!r}")
        return final

    def _arguments(self) -> dict[str, Any]:
        config = self._config
        arguments: dict[str, Any] = {
            "model": config.model,
            "dtype": config.dtype,
            "max_model_len": config.max_context,
            "max_num_seqs": config.max_num_seqs,
            "tensor_parallel_size": config.tensor_parallel_size,
            "enable_prefix_caching": config.enable_prefix_caching,
            "seed": config.seed,
            "scheduling_policy": "priority",  # of `Sampling.priority`, then by when a request came
            "generation_config": "vllm",  # nothing but what each request asks for
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": f"{__package__}.vllm_worker.WeightReceiver",
            "disable_log_stats": True,
        }
        if config.adapter is not None:
            arguments |= config.adapter.engine_arguments()
        if config.max_batched_tokens is not None:
            arguments["max_num_batched_tokens"] = config.max_batched_tokens
        if not self._on_gpu:
            return arguments | {
                "enforce_eager": True,
                "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            }
        arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
        if config.enforce_eager:
            return arguments | {"enforce_eager": True}
        sizes = [size for size in CAPTURE_SIZES if size <= config.max_num_seqs]
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        return arguments | {"compilation_config": graphs}

    async def _call(self, method: str, *arguments: Any) -> list[Any]:
        call = self._engine.collective_rpc(method, timeout=self._config.sync_timeout_s, args=arguments)
        try:
            results: list[Any] = await self._within(call, method)
        except (DeadlineError, EngineDeadError):
            raise
        except Exception as error:
            raise WeightSyncError(f"{method} failed in the engine's worker: {error}") from error
        return results

    async def _within(self, awaitable: Any, what: str) -> Any:
        """Wait for a call that the engine answers; vLLM leaves such calls open for ever when it dies."""
        if self._engine is None:
            raise EngineDeadError("the engine is not started, or closed")
        task = asyncio.ensure_future(awaitable)
        deadline = asyncio.get_running_loop().time() + self._config.sync_timeout_s
        try:
            while not task.done():
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    raise DeadlineError(f"{what} took longer than {self._config.sync_timeout_s} s in the engine")
                await asyncio.wait({task}, timeout=min(left, HEALTH_POLL_S))
                if self._engine is None or self._engine.errored:
                    raise EngineDeadError(f"vLLM died during {what}")
            return task.result()
        finally:
            task.cancel()
