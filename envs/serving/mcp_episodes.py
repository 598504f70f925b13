"""What an MCP session does with an environment: call its tools, or `reset` it and `step`."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...errors import ToolError
from ..messages import Message, RawText, as_messages
from ..tools.calls import Schema
from ..tools.media import part_text
from ..tools.toolbox import Content, Toolbox
from .service import EnvService
from .wire import encoded, observation_of


class Episode(Protocol):
    """What one MCP session does with an environment."""

    @property
    def schemas(self) -> Sequence[Schema]:
        """Its tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Run one call; `ToolError` and `BadRequestError` go to the model."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class ToolEpisode:
    """The tools of an environment that has some."""

    def __init__(self, toolbox: Toolbox, timeout_s: float) -> None:
        self._toolbox = toolbox
        self._timeout_s = timeout_s

    @property
    def schemas(self) -> Sequence[Schema]:
        """The environment's own."""
        return self._toolbox.schemas

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Run one call."""
        return await self._toolbox.call(name, arguments, self._timeout_s)

    async def close(self) -> None:
        """Free what the tools hold."""
        await self._toolbox.close()


class StepEpisode:
    """`reset` and `step`."""

    schemas: Sequence[Schema] = (
        {
            "type": "function",
            "function": {
                "name": "reset",
                "description": "Begin an episode; returns what the environment says first.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "index": {"type": "integer", "description": "Which task", "default": 0},
                        "split": {"type": "string", "enum": ["train", "eval"], "default": "train"},
                    },
                },
            },
        },
        {
            "type": "function",
            "function": {
                "name": "step",
                "description": "Answer the environment; returns what it says, the reward, and whether that is the end.",
                "parameters": {
                    "type": "object",
                    "properties": {"action": {"type": "string"}},
                    "required": ["action"],
                },
            },
        },
    )

    def __init__(self, service: EnvService) -> None:
        self._service = service
        self._key: str | None = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Content:
        """Run one call."""
        if name == "reset":
            await self.close()
            task = self._service.task_at(arguments.get("split", "train"), 0, arguments.get("index", 0))
            told = await self._service.begin(task, None)
            self._key = told["session_id"]
            return _with_images(_text(told["observation"]), told["observation"])
        if name != "step":
            raise ToolError(f"there are the tools reset and step, and no {name!r}")
        if self._key is None:
            raise ToolError("no episode is running; call reset first")
        told = await self._service.step(self._key, str(arguments.get("action", "")), None)
        said = encoded({**told, "observation": _text(told["observation"])}).decode()
        return _with_images(said, told["observation"])

    async def close(self) -> None:
        """End the episode."""
        key, self._key = self._key, None
        if key is not None:
            await self._service.sessions.close(key)


def _text(observation: Any) -> str:  # Any: it is JSON
    """Return an observation as text; of several messages, each behind its role."""
    messages = as_messages(observation_of(observation, "environment"), "environment")
    if isinstance(messages, RawText):
        return messages
    if len(messages) == 1:
        return _said(messages[0])
    return "\n".join(f"{message['role']}: {_said(message)}" for message in messages)


def _with_images(text: str, observation: Any) -> Content:  # Any: as above
    """Return a text, and behind it the images that it names."""
    messages = as_messages(observation_of(observation, "environment"), "environment")
    contents = [] if isinstance(messages, RawText) else [message["content"] for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    images = [dict(part) for part in parts if part.get("type") == "image_url"]
    return [{"type": "text", "text": text}, *images] if images else text


def _said(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(map(part_text, content))
