"""Agents: messages to token ids and back, without drift.

Names are imported when first used, so that importing this package stays cheap.
"""

from typing import TYPE_CHECKING

from ..registry import import_attribute

if TYPE_CHECKING:
    from .base import Completion, Generator, Sampling, StopReason
    from .chat import ChatAgent
    from .conversation import ChatConversation
    from .sequence import Sequence, SequenceBuilder
    from .shape import Grammar, Shape
    from .template import ChatTemplate
    from .tokenizer import load_tokenizer

_MODULES = {
    "ChatAgent": "chat",
    "ChatConversation": "conversation",
    "ChatTemplate": "template",
    "Completion": "base",
    "Generator": "base",
    "Grammar": "shape",
    "Sampling": "base",
    "Sequence": "sequence",
    "SequenceBuilder": "sequence",
    "Shape": "shape",
    "StopReason": "base",
    "load_tokenizer": "tokenizer",
}

__all__ = [
    "ChatAgent",
    "ChatConversation",
    "ChatTemplate",
    "Completion",
    "Generator",
    "Grammar",
    "Sampling",
    "Sequence",
    "SequenceBuilder",
    "Shape",
    "StopReason",
    "load_tokenizer",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_attribute(f"{__name__}.{_MODULES[name]}:{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
