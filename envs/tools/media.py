"""Parts of a content that are no text, in words: what is not shown is said."""

from collections.abc import Mapping
from typing import Any

Part = Mapping[str, Any]  # Any: parts are JSON


def part_text(part: Part) -> str:
    """Return the text of a part; of any other what it is, never nothing."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "image_url":
        return _image_text(part["image_url"]["url"])
    return f"[{part.get('type', 'something that is no text')}]"


def media_text(kind: str, mime_type: str, data: str) -> str:
    """Return what an image or a sound is.

    Args:
        kind: `image` or `audio`.
        mime_type: Its type.
        data: Itself, in base64.
    """
    return f"[{kind} of type {mime_type}, {len(data) * 3 // 4} bytes]"


def _image_text(url: str) -> str:
    if not url.startswith("data:"):
        return f"[image at {url}]"
    mime_type, _, data = url.removeprefix("data:").partition(";base64,")
    return media_text("image", mime_type, data)
