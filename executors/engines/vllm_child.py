"""One life of vLLM: its front end in this process and the child process behind it, until it dies or is killed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ...agents.base import RequestRefusedError
from ...errors import DeadlineError, EngineDeadError, EngineError, WeightSyncError
from .vllm_config import VllmConfig, engine_arguments, set_environment, vision_arguments
from .vllm_images import PicturePrompt, read_by_vllm

Result = TypeVar("Result")


class VllmChild:
    """AsyncLLM and its child; both ends of our vLLM range offer all that is used of it here.

    Every wait ends when the child dies: vLLM itself leaves calls open for ever.

    Attributes:
        heard_at: When the last token came, on the event loop's clock.
        gone: Done once no request can be answered any more.
    """

    def __init__(self, engine: Any, timeout_s: float) -> None:
        """Take an AsyncLLM that was made; see `started`. Any: its parts have no types that both ends share."""
        self._engine = engine
        self._timeout_s = timeout_s
        self._engine._run_output_handler()  # it was made in a thread without a loop
        self._num_submitting = 0
        self._submitted = asyncio.Event()
        self._submitted.set()
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._engine.output_handler.add_done_callback(lambda _: self._end())
        self._clock = loop.time
        self.heard_at = self._clock()
        self._listen()

    @classmethod
    async def started(cls, config: VllmConfig, *, on_gpu: bool) -> "VllmChild":
        """Start one in a thread, since that takes seconds to minutes: environments go on meanwhile.

        Raises:
            EngineError: vLLM refused the model or the settings.
        """
        making = asyncio.ensure_future(asyncio.to_thread(_make, config, on_gpu=on_gpu))
        try:
            engine = await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_end_unwanted)
            raise
        return cls(engine, config.sync_timeout_s)

    async def begin(self) -> None:
        """Ask vLLM what it asks itself at the first request, where a deadline holds."""
        await self.within(self._engine.get_supported_tasks(), "the start")

    async def answer(
        self,
        prompt: Any,
        params: Any,
        request_id: str,
        adapter: Any,
        priority: int,
        on_submitted: Callable[[], None] | None = None,
    ) -> Any:
        """Return vLLM's last output for one request.

        Raises:
            RequestRefusedError: vLLM refused the request.
            EngineDeadError: The child is gone.
        """
        try:
            collector = await self._submit(request_id, prompt, params, adapter, priority)
            if on_submitted is not None:
                on_submitted()
            try:
                return await collector.get()
            except Exception as error:  # comes of nothing but the end of vLLM's output handler
                raise EngineDeadError(f"vLLM died while answering {request_id!r}: {error}") from error
        except asyncio.CancelledError:
            await self.withdraw([request_id])
            raise

    async def drain(self) -> None:
        """Stop once all that runs is finished, and forget cached keys and values."""
        await self.within(self._engine.pause_generation(mode="wait", clear_cache=True), "the pause")

    async def hold(self, *, forget: bool) -> None:
        """Stop between two tokens; return once all tokens before have come.

        Args:
            forget: Whether keys and values are dropped, those of running requests too, and computed again later.
        """
        # A request still on its way would reach the engine after the pause, with the salt from before it.
        await self.within(self._submitted.wait(), "requests that were on their way")
        await self.within(self._engine.pause_generation(mode="keep", clear_cache=forget), "the pause")
        barrier = _Barrier()
        self._engine.engine_core.outputs_queue.put_nowait(barrier)
        await self.within(barrier.reached.wait(), "the last tokens before the pause")

    async def resume(self) -> None:
        """Go on."""
        await self.within(self._engine.resume_generation(), "the resume")
        self.heard_at = self._clock()

    def num_sampled(self) -> dict[str, int]:
        """Return how many tokens came for each request that is not finished; exact while held."""
        states = self._engine.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    async def withdraw(self, request_ids: list[str]) -> None:
        """End requests, if they still run; who waits for them gets what was sampled, with finish reason "abort"."""
        if not self._is_gone:
            await self._engine.abort(request_ids)

    async def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every worker and return their results.

        Raises:
            WeightSyncError: A worker raised.
        """
        call = self._engine.collective_rpc(method, timeout=self._timeout_s, args=arguments)
        try:
            results: list[Any] = await self.within(call, method)
        except (DeadlineError, EngineDeadError):
            raise
        except Exception as error:
            raise WeightSyncError(f"{method} failed in the engine's worker: {error}") from error
        return results

    async def within(self, awaitable: Awaitable[Result], what: str, timeout_s: float | None = None) -> Result:
        """Wait, but not longer than the deadline (by default of a part of an update) or the child's life."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        task = asyncio.ensure_future(awaitable)
        ends: set[asyncio.Future[Any]] = {task, self.gone}  # Any: of one that gives a result, and one that does not
        try:
            await asyncio.wait(ends, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and (task.exception() is None or not self._is_gone):
                return task.result()
            if self._is_gone:
                raise EngineDeadError(f"vLLM died during {what}")
            raise DeadlineError(f"{what} took longer than {timeout_s:g} s in the engine")
        finally:
            task.cancel()

    async def stop(self, *, kindly: bool) -> None:
        """End the child, whatever state it is in; who waits for it gets `EngineDeadError`."""
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        killed = [] if kindly else list(self._engine.engine_core.resources.engine_manager.processes)
        for process in killed:
            process.kill()  # its workers die with it
        self._engine.output_processor.propagate_error(VllmDeadError())
        self._engine.output_handler.cancel()  # it would report the end as an error
        self._end()
        await asyncio.to_thread(self._engine.shutdown)
        for process in killed:
            await asyncio.to_thread(process.join, self._timeout_s)  # before that its memory is not free

    async def _submit(self, request_id: str, prompt: Any, params: Any, adapter: Any, priority: int) -> Any:
        from vllm.exceptions import VLLMValidationError

        self._num_submitting += 1
        self._submitted.clear()
        try:
            await asyncio.sleep(0)  # so that requests of one moment reach the engine together, and it steps with all
            if isinstance(prompt, PicturePrompt):
                prompt = await read_by_vllm(self._engine.renderer, prompt, request_id)
            if self._is_gone:  # vLLM would take it, and nobody answer
                raise EngineDeadError(f"vLLM was stopped before it took {request_id!r}")
            return await self._engine.add_request(request_id, prompt, params, lora_request=adapter, priority=priority)
        except EngineError:
            raise
        except (ValueError, VLLMValidationError) as error:  # the latter is a ValueError up to 0.22 only
            raise RequestRefusedError(f"vLLM refused {request_id!r}: {error}") from error
        except Exception as error:
            if self._is_gone:
                raise EngineDeadError(f"vLLM died before it took {request_id!r}: {error}") from error
            if params.structured_outputs is not None:  # 0.22 looks up what a grammar that is none does not have
                raise RequestRefusedError(f"vLLM refused {request_id!r}: {error!r}") from error
            raise
        finally:
            self._num_submitting -= 1
            if not self._num_submitting:
                self._submitted.set()

    @property
    def _is_gone(self) -> bool:
        """Whether it has died, even if not all of vLLM knows yet."""
        return self.gone.done() or bool(self._engine.errored)

    def _end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _listen(self) -> None:
        """Note when tokens come, at one call per step."""
        processor = self._engine.output_processor
        process = processor.process_outputs

        def heard(*arguments: Any, **named: Any) -> Any:
            self.heard_at = self._clock()
            return process(*arguments, **named)

        processor.process_outputs = heard


def _make(config: VllmConfig, *, on_gpu: bool) -> Any:
    set_environment(config, on_gpu=on_gpu)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = engine_arguments(config, on_gpu=on_gpu) | vision_arguments(config)
    try:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    except Exception as error:
        raise EngineError(f"vLLM could not start with {config.model!r}: {error}") from error


def _end_unwanted(making: "asyncio.Future[Any]") -> None:
    """End an engine whose start nobody waited for."""
    if not making.cancelled() and making.exception() is None:
        making.result().shutdown()


class _Barrier:
    """A step without outputs, to vLLM's output handler; when it is reached, all steps before have been taken in."""

    outputs: tuple[()] = ()
    timestamp = 0.0
    engine_index = 0
    weight_version = None

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    @property
    def scheduler_stats(self) -> None:
        """Read by the handler once it has no outputs left to process."""
        self.reached.set()
