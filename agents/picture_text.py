"""Texts with images in them, as tokens: what a template writes for an image gives way to what the processor does."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..envs.images import Image, as_image, has_images, read_images
from ..envs.messages import Message, RawText
from ..errors import ImageError
from .images import ImageReader, PlacedImage
from .template import ChatTemplate
from .tokenizer import Codec

Encoded = tuple[NDArray[np.int32], tuple[PlacedImage, ...]]
"""Token ids, and the images among them."""


class PictureText:
    """Expands the images of one model's conversations.

    Args:
        codec: The model's tokenizer.
        template: Its chat template, which says where images stand.
        reader: Its processor.
    """

    def __init__(self, codec: Codec, template: ChatTemplate, reader: ImageReader) -> None:
        self._codec = codec
        self._template = template
        self._reader = reader
        self._marker: str | None = None

    @property
    def marker(self) -> str:
        """What the template writes for an image."""
        if self._marker is None:
            self._marker = self._reader.marker(self._template.image_text())
        return self._marker

    def part(self, text: str, start: int, images: Sequence[Image]) -> Sequence[Image]:
        """Return the images that stand behind `start` in a rendered text, which has to hold all of these.

        Raises:
            ImageError: It holds more or fewer.
        """
        if (found := text.count(self.marker)) != len(images):
            raise ImageError(
                f"{len(images)} images became {found} places for one ({self.marker!r}) in the text that the model "
                "reads; a template may leave out those of some roles, and no text may hold such a place"
            )
        return images[text.count(self.marker, 0, start) :]

    def encode_after(self, before: NDArray[np.int32], text: str, images: Sequence[Image]) -> Encoded:
        """Tokenise text that follows `before`, and has one place for each of these images."""
        pieces = text.split(self.marker)
        marker = tuple(self._codec.encode(self.marker).tolist())
        ids = [self._codec.encode_after(before, pieces[0])]
        placed: list[PlacedImage] = []
        stop = len(ids[0])
        for image, piece in zip(images, pieces[1:], strict=True):
            expanded = self._reader.expanded(self.marker, image)
            placed.append(PlacedImage(image, stop, stop + len(expanded), marker))
            ids += [expanded, self._codec.encode_after(expanded, piece)]
            stop = placed[-1].stop + len(ids[-1])
        return np.concatenate(ids), tuple(placed)

    def check_text(self, token_ids: NDArray[np.int32]) -> None:
        """Refuse tokens with a place for an image that nobody put there; it could not be told from a true one.

        Raises:
            ImageError: They hold one.
        """
        token_id = self._reader.token_id
        if token_id is not None and (token_ids == token_id).any():
            text = self._codec.decode_few(np.array([token_id]))
            raise ImageError(f"{text!r} stands for an image, and the model wrote it itself, or a text holds it")


def raw_text_with_images(text: RawText, pictures: PictureText | None) -> Encoded:
    """Tokenise a text that no template is put around, and that has places for its images itself.

    Raises:
        ImageError: It has more or fewer, or the model (that of no `pictures`) takes none.
    """
    if pictures is None:
        raise ImageError("a text came with images, and this model reads text only; use a vision-language model")
    images = [as_image(image) for image in text.images]
    return pictures.encode_after(np.empty(0, np.int32), text, pictures.part(text, 0, images))


def with_images(message: Message, pictures: PictureText | None) -> Message:
    """Return a message with its images read.

    Raises:
        ImageError: One cannot be, or the model (that of no `pictures`) takes none.
    """
    if pictures is None and has_images(message):
        raise ImageError(
            f"a message of role {message['role']!r} holds an image, and this model reads text only; use a "
            "vision-language model, or say in words what is to be seen"
        )
    return read_images(message)
