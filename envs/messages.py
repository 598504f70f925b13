"""What environments say: plain text, chat messages, or raw text appended as it is."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

from ..errors import EnvError

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")


class Message(TypedDict, total=False):
    """One chat message in OpenAI's form; `content` is text or a list of typed parts."""

    role: Required[Role]
    content: Required[str | list[dict[str, Any]]]
    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    reasoning_content: str


class RawText(str):
    """Text that is tokenised without special tokens and appended as it is, with no template around it.

    Attributes:
        images: Whose places are written out in the text as the model's processor expands them (`envs.images.Image`).
    """

    images: tuple[Any, ...]  # Any: images are read by what is made of messages

    def __new__(cls, text: str = "", images: Sequence[Any] = ()) -> "RawText":
        """Return the text, with its images."""
        made = super().__new__(cls, text)
        made.images = tuple(images)
        return made


Observation = str | list[Message] | RawText


def as_messages(observation: object, source: str) -> list[Message] | RawText:
    """Turn what an environment returned into messages, or raise `EnvError` naming `source`.

    A plain string is one user message; an empty list means that nothing is said.
    """
    if isinstance(observation, RawText):
        return observation
    if isinstance(observation, str):
        return [Message(role="user", content=observation)]
    if isinstance(observation, Sequence) and not isinstance(observation, bytes):
        return [_checked(message, source) for message in observation]
    raise EnvError(
        f"{source} returned an observation of type {type(observation).__name__}; "
        "wanted a str, a list of messages, or RawText"
    )


def _checked(message: object, source: str) -> Message:
    if not isinstance(message, Mapping) or "role" not in message:
        raise EnvError(f"{source} returned {message!r} as a message; wanted {{'role': ..., 'content': ...}}")
    if message["role"] not in ROLES:
        raise EnvError(f"{source} returned a message of role {message['role']!r}; wanted one of {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str | list) and not message.get("tool_calls"):
        raise EnvError(f"{source} returned a message whose content is {type(content).__name__}; wanted text or parts")
    return message  # type: ignore[return-value]


def instructed(messages: list[Message], instruction: str) -> list[Message]:
    """Return the messages with an instruction at the end of the last one, if it is the user's, or after it."""
    last = messages[-1] if messages else None
    content = last.get("content") if last else None
    if last is None or last["role"] != "user":
        return [*messages, Message(role="user", content=instruction)]
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": f"{content}\n\n{instruction}"}]
    return [*messages[:-1], {**last, "content": [*(content or []), {"type": "text", "text": instruction}]}]
