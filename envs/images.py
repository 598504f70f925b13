"""Images in messages: one value type, whatever form environments and clients give them in."""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ImageError
from .messages import Message

if TYPE_CHECKING:
    from PIL import Image as Pictures

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # others of Pillow's run programs, or are not pixels
IMAGE_KINDS = ("image", "image_url", "input_image")
_SHOWN_CHARS = 60


@dataclass(frozen=True, eq=False, repr=False)
class Image:
    """An image file in memory; equal to any other of the same bytes.

    Attributes:
        data: The bytes of the file.
        width, height: In pixels, as the file has them.
        digest: Of the bytes.
    """

    data: bytes
    width: int
    height: int
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", blake2b(self.data, digest_size=16).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Image) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Image({self.width}x{self.height}, {self.digest})"

    @classmethod
    def of_bytes(cls, data: bytes) -> "Image":
        """Return the image that a file's bytes hold.

        Raises:
            ImageError: They hold none that Pillow reads.
        """
        try:
            with _opened(data) as picture:
                return cls(data, *picture.size)
        except Exception as error:  # Pillow's plugins raise what they like
            raise ImageError(f"{len(data)} bytes are no image of {', '.join(FORMATS)}: {error}") from error

    def to_pil(self) -> "Pictures.Image":
        """Return the pixels as RGB: turned as the camera was held, on white where they are transparent.

        Raises:
            ImageError: The file is broken.
        """
        from PIL import Image as Pictures
        from PIL import ImageOps

        try:
            picture: Pictures.Image = ImageOps.exif_transpose(_opened(self.data))
            if picture.mode == "RGB":
                picture.load()
                return picture
            if not picture.has_transparency_data:
                return picture.convert("RGB")
            picture = picture.convert("RGBA")
            white = Pictures.new("RGB", picture.size, "white")
            white.paste(picture, mask=picture)
        except Exception as error:  # as in `of_bytes`
            raise ImageError(f"{self!r} cannot be read to its end: {error}") from error
        return white


def as_image(value: Any) -> Image:  # Any: what environments have
    """Return an image from one of ours, Pillow's, an array [height, width, channels], a path, a data: URL or bytes.

    Raises:
        ImageError: It is none of these, or holds no image.
    """
    if isinstance(value, Image):
        return value
    if isinstance(value, bytes | bytearray):
        return Image.of_bytes(bytes(value))
    if isinstance(value, str) and value.startswith("data:"):
        return _of_url(value)
    if isinstance(value, str | Path):
        return _of_path(str(value))
    if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):  # as datasets has undecoded ones
        return Image.of_bytes(value["bytes"])
    if hasattr(value, "__array_interface__") and not hasattr(value, "save"):
        return _of_array(value)
    if hasattr(value, "save") and hasattr(value, "getbands"):
        return _of_pil(value)
    raise ImageError(
        f"a {type(value).__name__} is no image; wanted one of Pillow's, an array [height, width, channels] of uint8, "
        "a path, a data: URL, or the bytes of a file"
    )


def image_in(part: Mapping[str, Any], *, is_trusted: bool) -> Image | None:  # Any: each API has its own parts
    """Return the image that a part of a message holds, in OpenAI's, Anthropic's or Hugging Face's form; None if none.

    Args:
        part: Of a message's content.
        is_trusted: It may name files of this machine.

    Raises:
        ImageError: The image cannot be had.
    """
    kind = part.get("type")
    if kind not in IMAGE_KINDS:
        return None
    source = part.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        if source.get("type") == "base64":
            return _of_base64(source.get("data"))
        value = source.get("url", source)
    else:
        names = ("image", "image_url", "url", "path", "base64")
        value = next((part[name] for name in names if part.get(name) is not None), None)
        if kind == "image" and value is not None and value is part.get("base64"):
            return _of_base64(value)
    if isinstance(value, Mapping) and "url" in value:
        value = value["url"]
    if is_trusted or isinstance(value, Image):
        return as_image(value)
    if isinstance(value, str) and value.startswith("data:"):
        return _of_url(value)
    raise ImageError(f"an image is wanted as a data: URL with its bytes in base64; got {_shown(value)}")


def has_images(message: Message) -> bool:
    """Say whether some part of a message is an image, in whatever form."""
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") in IMAGE_KINDS for part in content)


def read_images(message: Message, *, is_trusted: bool = True) -> Message:
    """Return a message whose images are parts `{"type": "image", "image": Image}`; see `image_in`."""
    content = message.get("content")
    if not isinstance(content, list) or not has_images(message):
        return message
    read = [(part, image_in(part, is_trusted=is_trusted)) for part in content]
    parts = [part if image is None else {"type": "image", "image": image} for part, image in read]
    return {**message, "content": parts}


def _opened(data: bytes) -> "Pictures.Image":
    from PIL import Image as Pictures

    return Pictures.open(io.BytesIO(data), formats=FORMATS)


def _of_url(url: str) -> Image:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ImageError(f"a data: URL of an image reads 'data:image/png;base64,...'; got {_shown(url)}")
    return _of_base64(data)


def _of_base64(data: object) -> Image:
    try:
        decoded = base64.b64decode(str(data), validate=True)
    except ValueError as error:  # binascii's own error is one, and text that is not ASCII is another
        raise ImageError(f"an image's data is no base64: {error}") from error
    return Image.of_bytes(decoded)


def _of_path(path: str) -> Image:
    if path.startswith(("http://", "https://")):
        raise ImageError(f"images are not fetched from the net; give the file or its bytes instead of {_shown(path)}")
    try:
        return Image.of_bytes(Path(path.removeprefix("file://")).expanduser().read_bytes())
    except OSError as error:
        raise ImageError(f"there is no image {_shown(path)} to read: {error.strerror or error}") from error


def _of_array(array: Any) -> Image:
    from PIL import Image as Pictures

    try:
        return _of_pil(Pictures.fromarray(array))
    except (TypeError, ValueError) as error:
        raise ImageError(
            f"an array of {getattr(array, 'dtype', '?')} {getattr(array, 'shape', ())} is no image; wanted uint8 "
            f"[height, width, channels]: {error}"
        ) from error


def _of_pil(picture: "Pictures.Image") -> Image:
    if picture.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        picture = picture.convert("RGB")  # what PNG has no form for
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return Image(file.getvalue(), *picture.size)


def _shown(value: object) -> str:
    return f"{value!r:.{_SHOWN_CHARS}}"
