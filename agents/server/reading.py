"""Requests that bring their whole history each time: what of it was sent before is not checked again."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from .known_messages import ChatForm, KnownMessages, SentMessages
from .wire import WireModel, read, value_of

Wire = TypeVar("Wire", bound=WireModel)


def read_with_history(
    kind: type[Wire], body: bytes, known: KnownMessages, in_chat_form: Callable[[Wire], Sequence[ChatForm]]
) -> tuple[Wire, SentMessages]:
    """Return a request and its messages.

    Args:
        kind: Has a field `messages`; that of the request that is returned holds only the last ones.
        body: Of the request.
        known: What the session was sent.
        in_chat_form: Returns what stands for each of these in a chat completion.

    Raises:
        ApiError: The body holds no such request, or one that is refused.
    """
    try:
        value = value_of(body)
        num_known, keys = known.num_known(kind.__name__, value["messages"])
        start = min(num_known, len(keys) - 1)  # a request without messages is refused, here too
        request = kind.model_validate({**value, "messages": value["messages"][start:]})
    except (ValueError, TypeError, KeyError):  # pydantic's error is a ValueError, and so is ours
        request = read(kind, body)  # says what is wrong, and where in the whole of it
        return request, known.in_form([each for chat_form in in_chat_form(request) for each in chat_form])
    request.check()
    return request, known.sent(keys, in_chat_form(request))
