"""Images among ids that somebody else expanded: each is found where the model's own processor's expansion stands."""

# T tokens

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..envs.images import Image
from ..errors import ConfigError, ImageError
from .images import ImageReader, PlacedImage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ImagePlaces:
    """Finds images among ids of one model.

    Args:
        reader: Its processor.
        tokenizer: Its tokenizer.
    """

    def __init__(self, reader: ImageReader, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._reader = reader
        self._tokenizer = tokenizer

    def find(self, token_ids: NDArray[np.int32], images: Sequence[Image]) -> tuple[PlacedImage, ...]:
        """Return where these images stand, in their order.

        Args:
            token_ids: int32 [T], with every image expanded.
            images: All that the ids stand for.

        Raises:
            ConfigError: The model's configuration names no id that stands for an image.
            ImageError: The ids hold more, fewer, or other ones.
        """
        if images and self._reader.token_id is None:
            raise ConfigError("the model's configuration names no id that stands for a piece of an image")
        places = self._places(token_ids)
        placed: list[PlacedImage] = []
        stop = 0
        for image in images:
            expanded = self._reader.expanded(self._reader.token, image)
            left = places[places >= stop]
            if not len(left):
                raise ImageError(
                    f"{len(images)} images came with tokens that hold {len(placed)}; one place is wanted for each"
                )
            start = int(left[0]) - len(self.before_any(expanded))
            if start < stop or not np.array_equal(token_ids[start : start + len(expanded)], expanded):
                raise ImageError(
                    f"the tokens at {int(left[0])} are not those {len(expanded)} that the model's processor writes for "
                    f"{image!r}; tokenise texts together with their images, by the processor"
                )
            stop = start + len(expanded)
            placed.append(PlacedImage(image, start, stop, self._marker))
        if (places >= stop).any():
            raise ImageError(
                f"the tokens hold more places than their {len(images)} images; give all images so far, none twice, "
                f"and let no text hold {self._reader.token!r}"
            )
        return tuple(placed)

    def check_sampled(self, token_ids: NDArray[np.int32]) -> None:
        """Refuse what the model wrote if it holds a place for an image.

        Raises:
            ImageError: It does.
        """
        if len(self._places(token_ids)):
            raise ImageError(f"the model wrote {self._reader.token!r} itself, which stands for an image")

    def before_any(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the ids before the first place for an image."""
        places = self._places(token_ids)
        return token_ids[: places[0]] if len(places) else token_ids

    @property
    def _marker(self) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(self._reader.token, add_special_tokens=False))

    def _places(self, token_ids: NDArray[np.int32]) -> NDArray[np.intp]:
        token_id = self._reader.token_id
        return np.flatnonzero(token_ids == token_id) if token_id is not None else np.empty(0, np.intp)


class ReadingTokenizer:
    """A tokenizer that is the model's processor as well, which is loaded when something is asked that only it has.

    Args:
        tokenizer: The model's tokenizer, which answers where both could.
        reader: Has its processor.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", reader: ImageReader) -> None:
        self.tokenizer = tokenizer
        self._reader = reader

    def __call__(self, text: Any = None, *args: Any, images: Any = None, **kwargs: Any) -> Any:  # Any: as theirs
        """Tokenise a text, or by the processor one with images."""
        if images is None or (isinstance(images, list) and not images):
            return self.tokenizer(text, *args, **kwargs)
        return self._reader.processor(*args, text=text, images=images, **kwargs)

    def __getattr__(self, name: str) -> Any:  # Any: whatever either has
        """Return what the tokenizer has of this name, or the processor."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tokenizer if hasattr(self.tokenizer, name) else self._reader.processor, name)

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.tokenizer)
