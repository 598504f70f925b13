"""A fair gate in front of an engine: families of environments share its time by weight."""

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.images import Images
from .gate import FairGate


class GatedGenerator:
    """The engine as one family's episodes see it: requests wait at the gate, which all families share.

    The wait counts towards the request's deadline, as the wait in the engine's own queue does: whoever asks cancels.
    """

    def __init__(self, generator: Generator, gate: FairGate, family: str) -> None:
        self._generator = generator
        self._gate = gate
        self._family = family

    @property
    def max_context(self) -> int:
        """Most tokens that prompt and completion may have together."""
        return self._generator.max_context

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion when it is the family's turn."""
        entered_at = await self._gate.enter(self._family)
        try:
            return await self._generator.generate(prompt_ids, sampling, images, request)
        finally:
            self._gate.leave(self._family, entered_at)
