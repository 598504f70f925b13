"""Images among tokens: where they stand, and how a model's own processor writes them out.

Each image is expanded once, to the ids that engine and learner both see in its place.
"""

# T tokens that stand for an image

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..envs.images import Image
from ..errors import ConfigError, ImageError

if TYPE_CHECKING:
    from transformers import ProcessorMixin

_MOST_EXPANSIONS = 1024
# What a processor gives beside a model's inputs that come of images.
_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")


@dataclass(frozen=True)
class PlacedImage:
    """An image and the tokens that stand for it.

    Attributes:
        image: What the model sees.
        start, stop: Its tokens in the context.
        marker: The ids that stood there before they were expanded, which some engines want.
    """

    image: Image
    start: int
    stop: int
    marker: tuple[int, ...]

    def moved(self, by: int) -> "PlacedImage":
        """Return the same image further on."""
        return replace(self, start=self.start + by, stop=self.stop + by)


Images = Sequence[PlacedImage]
"""Of one context, in their order there."""


def fingerprint(token_ids: NDArray[np.int32], images: Images | None) -> bytes:
    """Return what tells contexts apart: images of one size have the same tokens."""
    return token_ids.tobytes() + "".join(placed.image.digest for placed in images or ()).encode()


class ImageReader:
    """A vision-language model's processor, loaded with the first image.

    Args:
        model: Folder or hub name.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._loaded: ProcessorMixin | None = None
        self._expansions: OrderedDict[tuple[str, str], NDArray[np.int32]] = OrderedDict()

    @cached_property
    def token_id(self) -> int | None:
        """The id that stands for a piece of an image; None where the configuration names none."""
        config = read_config(self._model)
        found: int | None = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        return found

    def marker(self, written: str) -> str:
        """Return what is expanded in the text that a chat template writes for an image.

        Raises:
            ConfigError: The model's processor cannot be loaded.
            ImageError: The template writes nothing.
        """
        token = str(getattr(self.processor, "image_token", ""))
        marker = token if token and token in written else written.strip()
        if not marker:
            raise ImageError("the chat template leaves images out; use the one that came with the model")
        return marker

    @property
    def token(self) -> str:
        """The text that the processor itself expands.

        Raises:
            ConfigError: It says nothing of one.
        """
        token = getattr(self.processor, "image_token", None)
        if not token:
            raise ConfigError(f"the processor of {self._model!r} names no text that stands for an image")
        return str(token)

    def expanded(self, marker: str, image: Image) -> NDArray[np.int32]:
        """Return the ids int32 [T] that stand for an image.

        Raises:
            ImageError: The processor does not take it.
        """
        key = (marker, image.digest)
        ids = self._expansions.get(key)
        if ids is None:
            ids = self._expansions[key] = self._expand(marker, image)
            if len(self._expansions) > _MOST_EXPANSIONS:
                self._expansions.popitem(last=False)
        return ids

    def model_inputs(self, images: Sequence[Image]) -> dict[str, Any]:
        """Return what the model's forward pass takes for these images, as tensors; Any: each model has its own."""
        given = self._processed(self.token * len(images), [image.to_pil() for image in images])
        return {name: value for name, value in given.items() if name not in _TEXT_INPUTS}

    @property
    def processor(self) -> "ProcessorMixin":
        """The model's processor.

        Raises:
            ConfigError: It cannot be loaded.
        """
        if self._loaded is None:
            self._loaded = load_processor(self._model)
        return self._loaded

    def _expand(self, marker: str, image: Image) -> NDArray[np.int32]:
        ids = np.asarray(self._processed(marker, [image.to_pil()])["input_ids"][0], np.int32)
        if not len(ids):
            raise ImageError(f"the model's processor writes no token for {image!r}")
        return ids

    def _processed(self, text: str, pictures: list[Any]) -> Any:
        processor: Any = self.processor  # Any: each takes arguments of its own
        try:
            return processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="pt")
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            sizes = ", ".join(f"{picture.width}x{picture.height}" for picture in pictures)
            raise ImageError(f"the model's processor does not take images of {sizes}: {error}") from error


def image_reader_of(model: str) -> ImageReader | None:
    """Return what expands images for a model; None for one of text alone."""
    return ImageReader(model) if is_vision_model(model) else None


def is_vision_model(model: str) -> bool:
    """Say whether a model, by its configuration, reads images and answers in text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return read_config(model).model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def read_config(model: str) -> Any:  # Any: each model's configuration has fields of its own
    """Read the configuration of a model folder or hub name."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration of {model!r}: {error}") from error


def load_processor(model: str) -> "ProcessorMixin":
    """Load the processor of a vision-language model; without torchvision, one that takes images and no videos.

    Raises:
        ConfigError: There is none that transformers can load.
    """
    from transformers import AutoProcessor, ProcessorMixin
    from transformers.utils import is_torchvision_available

    try:
        processor: object = (
            AutoProcessor.from_pretrained(model) if is_torchvision_available() else _without_torchvision(model)
        )
    except (OSError, ValueError, ImportError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"cannot load the image processor of {model!r}: {error}; is torchvision installed, of the version that "
            "goes with torch?"
        ) from error
    if not isinstance(processor, ProcessorMixin):
        raise ConfigError(f"{model!r} has no processor that takes text and images, only a {type(processor).__name__}")
    return processor


def _without_torchvision(model: str) -> "ProcessorMixin":
    """Load a processor, if need be made of its parts: the one for videos among them cannot do without torchvision."""
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    kind: Any = PROCESSOR_MAPPING[type(read_config(model))]  # Any: classes made as they are needed
    if "video_processor" not in kind.get_attributes():
        return AutoProcessor.from_pretrained(model)

    class ImagesOnly(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is not None:
                return super().check_argument_for_proper_class(argument_name, argument)
            return None

    made: ProcessorMixin = ImagesOnly(
        image_processor=AutoImageProcessor.from_pretrained(model),
        tokenizer=AutoTokenizer.from_pretrained(model),
        video_processor=None,
    )
    return made
