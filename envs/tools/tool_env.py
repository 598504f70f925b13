"""`ToolEnv`: Python functions, or the methods of a class, as tools."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

from ...registry import with_absolute_file
from .functions import EpisodeFunctions, Functions, ToolSource
from .tool_loop import ToolLoop
from .toolbox import AfterCalls, ToolRules


class ToolEnv(ToolLoop):
    """A task of a dataset and Python functions as tools; the model calls them until it answers without a call.

    Args:
        tools: Functions and classes: one, a list, or names ("module:name", "path/to/file.py:name"), comma-separated.
            The public methods of a class are tools; it is made anew for each episode.
        remote_url: A Python file with `reward_func`, or HTTP URLs; its queries are the prompt and the final answer.
        max_turns: Answers of the model, the final one included.
        max_calls: Calls that are run of one answer.
        call_timeout_s: Deadline of one call.
        max_output_chars: Shown of what one call gave.
        system_prompt: A system message before the task's prompt.
        timeout_s: Deadline of one call of the reward function.
        after_calls: `keep` leaves what the model writes behind its last call in prompt and loss; by default it is cut.
    """

    def __init__(
        self,
        tools: ToolSource | Sequence[ToolSource],
        remote_url: str | None = None,
        max_turns: int = 16,
        max_calls: int = 16,
        call_timeout_s: float = 30.0,
        max_output_chars: int = 4000,
        system_prompt: str | None = None,
        timeout_s: float = 180.0,
        after_calls: AfterCalls = "cut",
    ) -> None:
        rules = ToolRules(max_turns, max_calls, call_timeout_s, max_output_chars, system_prompt, after_calls)
        super().__init__(rules, remote_url, timeout_s)
        self._functions = _functions(_listed(tools))

    def state(self, kind: type) -> Any:  # Any: it is an object of the class that is given
        """Return the episode's object of one of the classes among `tools`."""
        return cast(EpisodeFunctions, self.toolbox).states[kind]

    def new_toolbox(self) -> EpisodeFunctions:
        """Return the tools of an episode, not yet opened."""
        return self._functions.episode()


@lru_cache(maxsize=64)
def _functions(sources: tuple[ToolSource, ...]) -> Functions:
    """Read signatures once, not for each episode."""
    return Functions(sources)


def _listed(tools: ToolSource | Sequence[ToolSource]) -> tuple[ToolSource, ...]:
    if isinstance(tools, str):
        return tuple(with_absolute_file(name.strip()) for name in tools.split(",") if name.strip())
    if callable(tools):
        return (tools,)
    return tuple(each for tool in tools for each in _listed(tool))
