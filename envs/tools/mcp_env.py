"""`MCP`: the tools of a server that speaks the Model Context Protocol."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Literal

from .mcp_target import McpTarget
from .mcp_toolbox import McpToolbox
from .tool_loop import ToolLoop
from .toolbox import AfterCalls, ToolRules


class MCP(ToolLoop):
    """A task of a dataset and the tools of an MCP server, started by a command or reached at a URL.

    Each episode has a server process, or a session, of its own, and so a state of its own. What a tool says of its
    failure goes to the model; a server that crashes or is down fails the episode.

    Args:
        command: Starts a server over stdio: "python server.py", or a list of words.
        url: Of a server over streamable HTTP.
        env: Environment variables of the command; of this process's own it gets only a few harmless ones.
        headers: Of every request to the URL, such as Authorization.
        shared: One process or session for all episodes of a worker that run at once.
        images: Pass images that tools give on to the model, which must be able to see.
        mode: How the protocol is agreed on; `legacy` makes a session with a state, `auto` may agree on one without.
        start_timeout_s: Deadline of the server's start.
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
        command: str | Sequence[str] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        shared: bool = False,
        images: bool = False,
        mode: Literal["legacy", "auto"] = "legacy",
        start_timeout_s: float = 30.0,
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
        words = shlex.split(command) if isinstance(command, str) else command
        self._target = McpTarget(
            command=None if words is None else tuple(words),
            url=url,
            env=tuple(sorted((env or {}).items())),
            headers=tuple(sorted((headers or {}).items())),
            mode=mode,
            start_timeout_s=start_timeout_s,
        )
        self._is_shared, self._with_images = shared, images

    def new_toolbox(self) -> McpToolbox:
        """Return the tools of an episode, not yet opened."""
        return McpToolbox(self._target, is_shared=self._is_shared, with_images=self._with_images)
