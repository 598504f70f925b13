"""Images of a dataset's column, put at their places in the prompt."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import DataError, ImageError
from .images import Image, as_image
from .messages import Message

MARK = "<image>"
"""What stands for an image in a prompt's text, as many datasets have it."""


def images_of_row(value: object, folder: Path) -> list[Image]:
    """Return the images of one cell: one, several, or none.

    Args:
        value: Of the column: paths, bytes, Pillow's images; one or a list.
        folder: The dataset's, where paths that are not absolute are looked for first.

    Raises:
        ImageError: Something is no image.
    """
    if value is None:
        return []
    values = value if isinstance(value, list | tuple) else [value]
    return [as_image(_found(each, folder)) for each in values]


def prompt_with_images(prompt: str | Sequence[Message], images: Sequence[Image]) -> list[Message]:
    """Return a prompt's messages with its images.

    They take the places of `<image>` in texts, or of parts of type `image` that hold none; a prompt without any place
    has them before the text of the user's first message.

    Raises:
        DataError: There are more places than images, or fewer.
    """
    messages = [Message(role="user", content=prompt)] if isinstance(prompt, str) else list(prompt)
    left = list(images)
    placed = [_placed(message, left) for message in messages]
    num_places = sum(map(_num_places, messages))
    if num_places == 0 and images:
        first = next((at for at, message in enumerate(placed) if message["role"] == "user"), None)
        if first is None:
            raise DataError(f"{len(images)} images have no place in a prompt without a message of the user")
        shown = [{"type": "image", "image": image} for image in images]
        placed[first] = {**placed[first], "content": [*shown, *_parts(placed[first])]}
    elif num_places != len(images):
        raise DataError(
            f"a prompt has {num_places} places for images ({MARK} in its text, or parts of type image), and its row "
            f"{len(images)} images"
        )
    return placed


def _found(value: Any, folder: Path) -> Any:
    if isinstance(value, dict) and value.get("bytes") is None and value.get("path"):  # as datasets has undecoded ones
        value = value["path"]
    if isinstance(value, str) and not value.startswith(("data:", "http:", "https:")) and (folder / value).is_file():
        return folder / value
    return value


def _parts(message: Message) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _is_place(part: dict[str, Any]) -> bool:
    return part.get("type") == "image" and not any(
        part.get(name) for name in ("image", "url", "path", "base64", "source")
    )


def _num_places(message: Message) -> int:
    parts = _parts(message)
    return sum(map(_is_place, parts)) + sum(str(part.get("text", "")).count(MARK) for part in parts)


def _placed(message: Message, left: list[Image]) -> Message:
    """Return a message with as many of the images that are left as it has places, if there are enough."""
    if not _num_places(message):
        return message
    parts: list[dict[str, Any]] = []
    for part in _parts(message):
        if _is_place(part):
            parts += [{"type": "image", "image": left.pop(0)}] if left else []
            continue
        for number, text in enumerate(str(part.get("text", "")).split(MARK) if "text" in part else ()):
            parts += [{"type": "image", "image": left.pop(0)}] if number and left else []
            parts += [{**part, "text": text}] if text else []
        if "text" not in part:
            parts.append(part)
    return {**message, "content": parts}


def checked_images(value: object, folder: Path, place: str, most: int) -> list[Image]:
    """Return the images of one cell; see `images_of_row`.

    Raises:
        DataError: One cannot be read, or there are more than `most`, where that is not 0.
    """
    try:
        images = images_of_row(value, folder)
    except ImageError as error:
        raise DataError(f"{place}: {error}") from error
    if most and len(images) > most:
        raise DataError(f"{place} holds {len(images)} images; --data.max_images_per_prompt lets {most} in")
    return images
