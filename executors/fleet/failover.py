"""A generator whose requests outlive its engine: another engine answers, or the same one once it is started anew."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.images import Images
from ...errors import EngineDeadError
from ..engines.lockstep import Ask, WaveEngine

Peer = Callable[[NDArray[np.int32], Sampling, Images | None, str], Awaitable[Completion]]


class Failover:
    """Asks its own engine as long as it lives.

    A completion that an engine took to its grave is asked for again from its prompt, which is exact: nothing of it
    was seen by anyone. A request waits where no engine lives; the caller's deadline ends that. An engine lives from its
    first update on, since only then it has the current weights.

    Attributes:
        peers: Other engines; each raises `EngineDeadError` where it cannot answer, and is then passed over.
        num_moved: Requests that another engine answered, so far.
    """

    def __init__(self, own: Generator) -> None:
        self._own = own
        self._lives = asyncio.Event()
        self.peers: Sequence[Peer] = ()
        self.num_moved = 0

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._own.max_context

    @property
    def lives(self) -> bool:
        """Whether its own engine answers, under the current weights."""
        return self._lives.is_set()

    def lost(self) -> None:
        """Take note that the engine is dead, or has no current weights."""
        self._lives.clear()

    def revived(self) -> None:
        """Take note that the engine answers again, under the current weights."""
        self._lives.set()

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion; see `Generator`."""
        while True:
            if self._lives.is_set():
                try:
                    return await self._own.generate(prompt_ids, sampling, images, request)
                except EngineDeadError:
                    self._lives.clear()
            for peer in random.sample(self.peers, len(self.peers)):
                try:
                    completion = await peer(prompt_ids, sampling, images, request)
                except EngineDeadError:
                    continue
                self.num_moved += 1
                return completion
            await self._wait()

    async def answer(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None, request: str
    ) -> Completion:
        """Answer a request of another actor's episode.

        Raises:
            EngineDeadError: This engine is dead, or has no current weights.
        """
        if not self._lives.is_set():
            raise EngineDeadError("this engine is dead too, or has no current weights yet")
        try:
            return await self._own.generate(prompt_ids, sampling, images, request)
        except EngineDeadError:
            self._lives.clear()
            raise

    async def _wait(self) -> None:
        """Wait until the own engine lives, or for a moment after which a peer may."""
        # Not wait_for: up to Python 3.11 it forgets a cancellation that comes together with the result.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._lives.wait()


class LivingWaves:
    """An engine in lockstep, which begins no wave before it has the current weights; nobody else answers for it.

    Args:
        engine: Whose waves.
        failover: Knows whether it lives.
    """

    def __init__(self, engine: WaveEngine, failover: Failover) -> None:
        self._engine, self._failover = engine, failover

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._engine.max_context

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion; see `Generator`."""
        (task,) = await self.submit_wave([Ask(prompt_ids, sampling, images, request)])
        return await task

    async def submit_wave(self, asks: Sequence[Ask]) -> list[asyncio.Task[Completion]]:
        """Submit requests; see `WaveEngine`."""
        if not self._failover.lives:
            raise EngineDeadError("the engine was started anew and has no current weights yet")
        return await self._engine.submit_wave(asks)
