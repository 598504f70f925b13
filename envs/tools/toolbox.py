"""Where an episode's tools live, as the environment sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from ...errors import ConfigError
from ...registry import nearest
from ..task import Task
from .calls import Schema, schema_name

AfterCalls = Literal["cut", "keep"]
Content = str | list[dict[str, Any]]  # text, or typed parts as in a message


class Toolbox(Protocol):
    """The tools of one episode."""

    async def open(self, task: Task) -> None:
        """Get ready for an episode; called once, and `close` follows whatever came of it.

        Raises:
            EnvError: The tools cannot be had.
        """
        ...

    @property
    def schemas(self) -> Sequence[Schema]:
        """What the model is told of the tools."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Content:
        """Run one call; several may run at once.

        Raises:
            ToolError: The model is told; it can do something about it.
            TurnGymError: Any other fails the episode.
        """
        ...

    async def close(self) -> None:
        """Free what the episode held."""
        ...


@dataclass(frozen=True)
class ToolRules:
    """How an episode with tools goes.

    Attributes:
        max_turns: Answers of the model, the final one included.
        max_calls: Calls that are run of one answer.
        call_timeout_s: Deadline of one call.
        max_output_chars: Shown of what one call gave.
        system_prompt: A system message before the task's prompt.
        after_calls: What becomes of what the model writes behind its last call: `cut` takes it out of prompt and loss,
            and where `max_calls` is 1 ends the turn at the call; `keep` leaves both.
    """

    max_turns: int = 16
    max_calls: int = 16
    call_timeout_s: float = 30.0
    max_output_chars: int = 4000
    system_prompt: str | None = None
    after_calls: AfterCalls = "cut"

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_calls", "max_output_chars"):
            if getattr(self, name) < 1:
                raise ConfigError(f"tools want {name} of 1 or more, got {getattr(self, name)}")
        if not self.call_timeout_s > 0:
            raise ConfigError(f"tools want call_timeout_s above 0, got {self.call_timeout_s}")
        if self.after_calls not in get_args(AfterCalls):
            raise ConfigError(f"tools want after_calls as 'cut' or 'keep', got {self.after_calls!r}")

    @property
    def info(self) -> dict[str, Any]:
        """What `info` of `reset` says of it."""
        if self.after_calls == "keep":
            return {}
        return {"after_calls": "stop" if self.max_calls == 1 else "cut"}


def unknown_tool(name: str, schemas: Sequence[Schema]) -> str:
    """Say that there is no such tool, and which there are."""
    return f"There is no tool {name!r}.{nearest(name, map(schema_name, schemas))}"
