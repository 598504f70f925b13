"""One engine that scores given tokens, in a process of its own."""

import numpy as np
from numpy.typing import NDArray

from ..engines.vllm import VllmConfig, VllmEngine
from .devices import take_devices


class ScoringActor:
    """Made as an asynchronous Ray actor; sequences are scored beside each other."""

    def __init__(self, config: VllmConfig, *, on_gpu: bool, name: str = "a teacher's engine") -> None:
        if on_gpu:
            take_devices(name, count=config.tensor_parallel_size, shares=True)
        self._engine = VllmEngine(config, on_gpu=on_gpu)

    async def start(self) -> int:
        """Start the engine and return its context length."""
        await self._engine.start()
        return self._engine.max_context

    async def score(self, token_ids: NDArray[np.int32], name: str) -> NDArray[np.float32]:
        """Return the logprob of each token of one sequence; see `Scorer`."""
        return await self._engine.score(token_ids, name)

    async def health(self) -> None:
        """Raise `EngineDeadError` unless the engine answers."""
        await self._engine.health()

    async def close(self) -> None:
        """Stop the engine and leave no process behind."""
        await self._engine.close()
