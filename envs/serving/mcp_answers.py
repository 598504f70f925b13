"""What MCP clients are answered, over whichever transport: the tools of an environment, and what comes of calls.

An environment with tools offers these. Any other offers `reset`, which begins an episode, and `step`, which acts in it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import mcp.types as mcp_types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from ...errors import EnvUnavailableError, ToolError, TurnGymError
from ..task import Task
from ..tools.media import part_text
from ..tools.tool_loop import ToolLoop
from ..tools.toolbox import Content
from .leases import Leases
from .mcp_episodes import Episode, StepEpisode, ToolEpisode
from .service import EnvService
from .wire import BadRequestError

METHOD_NOT_FOUND, INVALID_REQUEST, INTERNAL_ERROR = -32601, -32600, -32603
Context = ServerRequestContext[Any, Any]


class McpAnswers:
    """Answers clients, each of which has an episode from its first request on.

    Args:
        service: The environment.
        key_of: Tells clients apart; it may raise `MCPError`.
    """

    def __init__(self, service: EnvService, key_of: Callable[[Context], str]) -> None:
        self.episodes: Leases[Episode] = Leases(service.limits.lease_s, service.limits.max_sessions)
        self.server: Server[Any] = Server(
            service.factory.spec, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        self._service = service
        self._key_of = key_of
        self._starting: dict[str, asyncio.Task[None]] = {}

    async def _list_tools(self, context: Context, params: object) -> mcp_types.ListToolsResult:
        with self.episodes.sharing(await self._episode_of(context)) as episode:
            functions = [schema["function"] for schema in episode.schemas]
        tools = [
            mcp_types.Tool(
                name=function["name"],
                description=function.get("description"),
                input_schema=function.get("parameters") or {"type": "object", "properties": {}},
            )
            for function in functions
        ]
        return mcp_types.ListToolsResult(tools=tools)

    async def _call_tool(self, context: Context, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        key = await self._episode_of(context)
        try:
            with self.episodes.sharing(key) as episode:
                return _result(await episode.call(params.name, params.arguments or {}), is_error=False)
        except (ToolError, BadRequestError) as error:
            return _result(str(error), is_error=True)
        except TurnGymError as error:
            raise MCPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}") from error

    async def _episode_of(self, context: Context) -> str:
        """Return what a client is known by; its episode begins with its first request."""
        key = self._key_of(context)
        if key not in self.episodes:
            if key not in self._starting:
                self._starting[key] = asyncio.create_task(self._begin(key))
                self._starting[key].add_done_callback(lambda _: self._starting.pop(key))
            await asyncio.shield(self._starting[key])
        return key

    async def _begin(self, key: str) -> None:
        episode = await self._begun()
        try:
            self.episodes.add(key, episode)
        except EnvUnavailableError as error:
            await episode.close()
            raise MCPError(INTERNAL_ERROR, str(error)) from error

    async def _begun(self) -> Episode:
        try:
            env = self._service.factory()
            if not isinstance(env, ToolLoop):
                return StepEpisode(self._service)
            toolbox = env.new_toolbox()
            episode = ToolEpisode(toolbox, env.rules.call_timeout_s)
            try:
                await toolbox.open(Task(id=f"mcp/{self._service.factory.spec}", prompt=""))
            except BaseException:
                await episode.close()
                raise
        except TurnGymError as error:
            raise MCPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}") from error
        return episode


def _result(content: Content, *, is_error: bool) -> mcp_types.CallToolResult:
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return mcp_types.CallToolResult(content=[_block(part) for part in parts], is_error=is_error)


def _block(part: dict[str, Any]) -> mcp_types.ContentBlock:
    url = part["image_url"]["url"] if part.get("type") == "image_url" else ""
    if url.startswith("data:"):
        mime_type, _, data = url.removeprefix("data:").partition(";base64,")
        return mcp_types.ImageContent(data=data, mime_type=mime_type)
    return mcp_types.TextContent(text=part_text(part))
