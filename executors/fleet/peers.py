"""Another rollout actor's engine, asked through Ray."""

import asyncio
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from ...agents.base import Completion, Sampling
from ...agents.images import Images
from ...errors import EngineDeadError
from .failover import Peer
from .ray_calls import death_of, from_ray


def peer(actor: Any) -> Peer:  # Any: Ray's handles have no types
    """Return what asks an actor's engine; it raises `EngineDeadError` where that cannot answer."""

    async def ask(prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None, request: str) -> Completion:
        call = actor.answer.remote(prompt_ids, sampling, images, request)
        try:
            completion: Completion = await call
        except asyncio.CancelledError:
            ray.cancel(call, force=False)
            raise
        except RayError as error:
            if (cause := death_of(error)) is not None:
                raise EngineDeadError(cause) from error
            raise from_ray(error, f"request {request!r}", "another engine") from error
        return completion

    return ask
