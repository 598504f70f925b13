"""Prompts with images, as vLLM takes them: it expands each image anew, and has to come to the very tokens we have."""

# T tokens

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.images import Images
from ...errors import EngineError


@dataclass(frozen=True, eq=False)
class PicturePrompt:
    """A prompt whose images vLLM has not read yet.

    Attributes:
        token_ids: int32 [T], with the tokens that stand for images.
        images: Those.
        salt: As `prompt_of` has it; images, too, are encoded once for each.
    """

    token_ids: NDArray[np.int32]
    images: Images
    salt: str


async def read_by_vllm(renderer: Any, prompt: PicturePrompt, request_id: str) -> Any:  # Any: vLLM's own types
    """Return what vLLM's processor makes of a prompt, ready to be submitted.

    Raises:
        EngineError: vLLM refuses an image, or expands it to other tokens than the model's processor did.
    """
    given = await asyncio.to_thread(_given, prompt)
    try:
        read = await renderer.process_for_engine_async(given, time.time())
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise EngineError(f"vLLM cannot read the images of {request_id!r}: {error}") from error
    if not np.array_equal(read["prompt_token_ids"], prompt.token_ids):
        raise EngineError(
            f"vLLM expands the {len(prompt.images)} images of {request_id!r} to a prompt of "
            f"{len(read['prompt_token_ids'])} tokens, where the model's processor made other {len(prompt.token_ids)}; "
            "this kind of model cannot be sampled from with images"
        )
    return read


def _given(prompt: PicturePrompt) -> Any:
    from vllm.inputs import TokensPrompt

    return TokensPrompt(
        prompt_token_ids=unexpanded(prompt.token_ids, prompt.images),
        multi_modal_data={"image": [placed.image.to_pil() for placed in prompt.images]},
        # What is known of an image is kept under its name: after an update it has another one, and is encoded anew.
        multi_modal_uuids={"image": [f"{placed.image.digest}-{prompt.salt}" for placed in prompt.images]},
        cache_salt=prompt.salt,
    )


def unexpanded(token_ids: NDArray[np.int32], images: Images) -> list[int]:
    """Return a context with the markers of its images in place of what they were expanded to."""
    ids: list[int] = []
    at = 0
    for placed in images:
        ids += token_ids[at : placed.start].tolist()
        ids += placed.marker
        at = placed.stop
    ids += token_ids[at:].tolist()
    return ids
