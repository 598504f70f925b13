"""The engine as the requests of one episode see it: bounded by the episode's limits, its failures remembered."""

import asyncio
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, RequestRefusedError, Sampling, StopReason
from ...agents.images import Images, fingerprint
from ...agents.server.api_errors import ApiError
from ...envs.task import Task
from ...errors import DeadlineError, EngineError
from ..episodes.failures import Stage, failure_of
from ..episodes.limits import Limits
from ..episodes.retry import SeedFor
from ..episodes.trajectory import EndReason, Failure


class Meter:
    """Passes requests on, and counts.

    Args:
        generator: The engine.
        limits: Of the episode.
        task: For names and seeds.
        attempt: For names and seeds.
        seed_for: As `Executor.run` takes it.
    """

    def __init__(
        self, generator: Generator, limits: Limits, task: Task, attempt: int, seed_for: SeedFor | None = None
    ) -> None:
        self.limit: EndReason | None = None  # the one that a request was refused for
        self.generate_s = 0.0  # of all requests, also where they ran beside each other
        self._generator = generator
        self._limits = limits
        self._task = task
        self._attempt = attempt
        self._seed_for = seed_for
        self._num_answered = self._num_running = self._num_sampled = 0
        self._num_held = 0  # tokens that running requests may yet sample
        self._freed = asyncio.Event()  # set when one of them ends
        self._failures: dict[bytes, Failure] = {}  # of prompts that were not answered since

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        own = self._generator.max_context
        return min(own, self._limits.max_context or own)

    @property
    def failure(self) -> Failure | None:
        """The first failure of the engine that no repetition of the request made good."""
        return next(iter(self._failures.values()), None)

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion.

        Raises:
            ApiError: The episode has had all that its limits let it have; the client is told so.
            RequestRefusedError: The engine does not sample so.
            EngineError: The engine failed.
        """
        while self._waits():
            await self._freed.wait()
        turn = self._num_answered + self._num_running
        sampling = self._bounded(sampling, turn)
        prompt = fingerprint(prompt_ids, images)
        started_at = time.monotonic()
        self._num_running += 1
        self._num_held += sampling.max_tokens
        try:
            completion = await self._asked(prompt_ids, sampling, images, turn)
        except RequestRefusedError:
            raise  # what was asked for is the client's doing, and it is told
        except EngineError as error:
            self._failures[prompt] = _failure(error, turn)
            raise
        finally:
            self._num_running -= 1
            self._num_held -= sampling.max_tokens
            self._freed.set()
            self._freed = asyncio.Event()
            self.generate_s += time.monotonic() - started_at
        self._failures.pop(prompt, None)
        self._num_answered += 1
        self._num_sampled += len(completion.token_ids)
        return completion

    def _waits(self) -> bool:
        """Say whether a request would find tokens left once those that run leave what they do not use."""
        most = self._limits.max_episode_tokens
        return most is not None and self._num_sampled < most <= self._num_sampled + self._num_held

    def _bounded(self, sampling: Sampling, turn: int) -> Sampling:
        if turn >= self._limits.max_turns:
            self._refuse(EndReason.MAX_TURNS, f"{self._limits.max_turns} answers")
        max_tokens, most = sampling.max_tokens, self._limits.max_episode_tokens
        if most is not None:
            left = most - self._num_sampled - self._num_held
            if left < 1:
                self._refuse(EndReason.MAX_TOKENS, f"{most} tokens")
            max_tokens = min(max_tokens, left)
        seed = sampling.seed if self._seed_for is None else self._seed_for(self._task.id, self._attempt, turn)
        return replace(sampling, max_tokens=max_tokens, seed=seed)

    def _refuse(self, limit: EndReason, what: str) -> None:
        self.limit = limit
        told = f"the episode is over: it may have {what}, and has had them"
        raise ApiError(told, code=limit.value)

    async def _asked(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None, turn: int
    ) -> Completion:
        """Ask the engine; whatever goes wrong with it is an `EngineError`, with its reason as the cause."""
        timeout_s = self._limits.generate_timeout_s
        name = f"{self._task.id}/{self._attempt}/{turn}"
        task = asyncio.current_task()
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                if images is None:
                    completion = await self._generator.generate(prompt_ids, sampling, request=name)
                else:
                    completion = await self._generator.generate(prompt_ids, sampling, images, name)
        except EngineError:
            raise
        except asyncio.CancelledError as error:
            if task is not None and task.cancelling():
                raise
            raise EngineError(f"the engine cancelled request {name!r} by itself") from error
        except Exception as error:
            cause = (
                DeadlineError(f"no completion within generate_timeout_s={timeout_s}") if deadline.expired() else error
            )
            raise EngineError(f"request {name!r}: {cause!r}") from cause
        if (length := len(completion.token_ids)) > sampling.max_tokens:
            raise EngineError(f"{length} tokens came for {name!r}; max_tokens was {sampling.max_tokens}")
        if completion.stop_reason is StopReason.ABORT:
            # Half a completion is no answer: an agent would go on from something nobody wrote.
            raise EngineError(f"the engine aborted {name!r} after {length} tokens")
        return completion


def _failure(error: EngineError, turn: int) -> Failure:
    cause = error.__cause__
    return failure_of(cause if isinstance(cause, TimeoutError) else error, Stage.GENERATE, turn)
