"""Stands in for `openrlhf.utils.vlm_utils`: how executors read images, and tokenise texts that have places for them.

What cannot be read raises, where OpenRLHF goes on without it, and nothing is fetched from the net.
"""

import re
from typing import TYPE_CHECKING, Any

from ..images import Image, as_image

if TYPE_CHECKING:
    from PIL import Image as Pictures

__all__ = ["accumulate_mm_inputs", "load_images", "process_prompt_with_images"]

Tensors = dict[str, Any]  # Any: torch is not loaded for what it is the name of
# What a processor gives beside the tensors that come of images.
_OF_TEXT = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_BARE_BASE64 = re.compile(r"[A-Za-z0-9+/\n\r]+=*")
_LEAST_BASE64 = 256  # shorter texts are paths


def images_given(refs: Any) -> list[Image]:  # Any: what OpenRLHF's files give
    """Return the images of what a file calls images: nothing, one, or a list, in any form that `as_image` takes.

    Raises:
        ImageError: One cannot be read.
    """
    listed = refs if isinstance(refs, list | tuple) else [refs]
    return [as_image(_told(ref)) for ref in listed if ref is not None]


def load_images(image_refs: Any) -> "list[Pictures.Image]":
    """Return images as Pillow's, as the model sees them; see `images_given`."""
    return [image.to_pil() for image in images_given(image_refs)]


def process_prompt_with_images(
    processor: Any, prompt: str, images: Any
) -> "tuple[list[int], Tensors | None, list[Pictures.Image]]":
    """Tokenise a text with its images: ids with each expanded, the tensors that come of them, and Pillow's images.

    Args:
        processor: The model's, as an executor has it for `hf_tokenizer`.
        prompt: Has one place for each image.
        images: See `images_given`.
    """
    pictures = load_images(images)
    if not pictures:
        ids = processor(text=prompt, add_special_tokens=False, return_tensors="pt")["input_ids"][0].tolist()
        return ids, None, []
    given = processor(text=[prompt], images=pictures, add_special_tokens=False, return_tensors="pt")
    tensors = {name: value for name, value in given.items() if name not in _OF_TEXT}
    return given["input_ids"][0].tolist(), tensors or None, pictures


def accumulate_mm_inputs(existing: Tensors | None, new: Tensors | None) -> Tensors | None:
    """Return the tensors of earlier images with those of later ones behind them."""
    import torch

    if existing is None or new is None:
        return dict(new or existing or {}) or None
    merged = {**existing, **new}
    return merged | {name: torch.cat([existing[name], new[name]]) for name in existing.keys() & new.keys()}


def _told(ref: Any) -> Any:
    """Tell base64 without its `data:` from a path, as OpenRLHF does."""
    if isinstance(ref, str) and len(ref) > _LEAST_BASE64 and _BARE_BASE64.fullmatch(ref[: 2 * _LEAST_BASE64]):
        return "data:image;base64," + "".join(ref.split())
    return ref
