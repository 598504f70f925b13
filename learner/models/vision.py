"""Models that read images: how they are loaded, what their forward pass takes, and which of them can be trained.

Sequences with images are packed like others; each image's tokens stand at the places in height and width that the
model itself gives them in that sequence alone.
"""

# N tokens of a row, T of one sequence, P patches

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...agents.images import ImageReader, PlacedImage
from ...envs.images import as_image
from ...errors import ConfigError
from ..batch import Batch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BLANK_PIXELS = 56
EYES = r"(.*\.)?visual(\..*)?"
"""Names of the parts of a visual encoder, as an expression that matches each whole."""
TRAINED = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})
"""Model types whose packed forward pass with images was compared with each sequence's alone, or is built alike."""


def reads_images(config: "PretrainedConfig") -> bool:
    """Say whether the learner trains this kind of model with its eyes."""
    return config.model_type in TRAINED


def policy_class(config: "PretrainedConfig") -> Any:  # Any: transformers' classes are open
    """Return the class that loads a policy."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM


def attention_for(config: "PretrainedConfig", attention: str) -> str | dict[str, str]:
    """Return the attention of a model's layers; eyes, which see each image alone and both ways, keep their own."""
    return {"text_config": attention, "vision_config": "sdpa"} if reads_images(config) else attention


def has_eyes(model: torch.nn.Module) -> bool:
    """Say whether a model has a visual encoder."""
    return any(re.fullmatch(EYES, name) for name, _ in model.named_modules())


def freeze_eyes(model: torch.nn.Module) -> int:
    """Leave the visual encoder as it is; return how many parameters that are.

    Raises:
        ConfigError: The model has none.
    """
    eyes = [parameter for name, parameter in model.named_parameters() if re.fullmatch(EYES, name)]
    if not eyes:
        raise ConfigError(f"--actor.freeze_visual_encoder: {type(model).__name__} has no visual encoder; leave it out")
    for parameter in eyes:
        parameter.requires_grad_(False)
    return len(eyes)


def image_inputs(model: torch.nn.Module, batch: Batch, device: torch.device | str) -> dict[str, Any]:
    """Return what a forward pass takes beside the tokens: nothing where the batch holds no image.

    Raises:
        ConfigError: The model cannot be trained with images.
        ImageError: Its processor does not take one.
    """
    if not any(batch.images):
        return {}
    bare: Any = getattr(model, "module", model)  # Any: transformers' models are open
    if not reads_images(bare.config):
        raise ConfigError(
            f"a batch holds images, and a model of type {bare.config.model_type!r} cannot be trained with them; "
            f"those that can be: {', '.join(sorted(TRAINED))}"
        )
    reader = _reader(bare.config.name_or_path)
    pixels, grids, positions = [], [], []
    for number, images in enumerate(batch.images):
        ids_1T = torch.tensor(batch.token_ids[batch.starts[number] : batch.starts[number + 1]])[None].long()
        if not images:
            positions.append(torch.arange(ids_1T.shape[1]).expand(3, 1, -1))
            continue
        given = reader.model_inputs([placed.image for placed in images])
        types_1T = torch.zeros_like(ids_1T)
        for placed in images:
            types_1T[0, placed.start : placed.stop] = 1
        positions.append(bare.model.get_rope_index(ids_1T, types_1T, given["image_grid_thw"])[0])
        pixels.append(given["pixel_values"])
        grids.append(given["image_grid_thw"])
    return {
        "position_ids": torch.cat(positions, dim=-1).to(device),
        "pixel_values": torch.cat(pixels).to(device, bare.dtype),
        "image_grid_thw": torch.cat(grids).to(device),
    }


def with_an_image(model: torch.nn.Module, batch: Batch) -> Batch:
    """Return the batch with an image behind it if it has none and the model could see it.

    All ranks of a sharded model have to run all of its parts: one without an image would leave its eyes out, and the
    others wait for it.
    """
    config: Any = getattr(model, "module", model).config  # Any: transformers' configurations are open
    if any(batch.images) or not reads_images(config):
        return batch
    reader = _reader(config.name_or_path)
    blank = as_image(np.zeros((_BLANK_PIXELS, _BLANK_PIXELS, 3), np.uint8))
    ids_T = reader.expanded(reader.token, blank)
    return batch.with_context(ids_T, (PlacedImage(blank, 0, len(ids_T), ()),))


@lru_cache(maxsize=8)
def _reader(model: str) -> ImageReader:
    return ImageReader(model)
