"""An environment as an MCP server over streamable HTTP: each MCP session is an episode.

An environment with tools offers these. Any other offers `reset`, which begins an episode, and `step`, which acts in it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import mcp.types as mcp_types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from ...errors import EnvUnavailableError, ToolError, TurnGymError
from ..task import Task
from ..tools.tool_loop import ToolLoop
from ..tools.toolbox import Content
from .leases import Leases
from .mcp_episodes import Episode, StepEpisode, ToolEpisode
from .service import EnvService
from .wire import BadRequestError

_SESSION_HEADER = "mcp-session-id"
_METHOD_NOT_FOUND, _INVALID_REQUEST, _INTERNAL_ERROR = -32601, -32600, -32603


class McpMount:
    """The MCP side of a server.

    Args:
        service: The environment.
    """

    def __init__(self, service: EnvService) -> None:
        self._service = service
        self._episodes: Leases[Episode] = Leases(service.limits.lease_s, service.limits.max_sessions)
        self._starting: dict[str, asyncio.Task[None]] = {}
        server: Server[Any] = Server(service.factory.spec, on_list_tools=self._list_tools, on_call_tool=self._call_tool)
        # Newer versions of the protocol have no sessions, and an episode needs one; refused, clients shake hands.
        server.add_request_handler("server/discover", mcp_types.RequestParams, _refuse_discovery)
        self._manager = StreamableHTTPSessionManager(server, session_idle_timeout=service.limits.lease_s)
        self.app = _ClosingApp(StreamableHTTPASGIApp(self._manager), self._episodes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests while the context is open."""
        sweeping = asyncio.create_task(self._episodes.sweep_forever())
        try:
            async with self._manager.run():
                yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await self._episodes.close_all()

    async def _list_tools(self, context: ServerRequestContext[Any, Any], params: object) -> mcp_types.ListToolsResult:
        with self._episodes.sharing(await self._episode_of(context)) as episode:
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

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        key = await self._episode_of(context)
        try:
            with self._episodes.sharing(key) as episode:
                return _result(await episode.call(params.name, params.arguments or {}), is_error=False)
        except (ToolError, BadRequestError) as error:
            return _result(str(error), is_error=True)
        except TurnGymError as error:
            raise MCPError(_INTERNAL_ERROR, f"{type(error).__name__}: {error}") from error

    async def _episode_of(self, context: ServerRequestContext[Any, Any]) -> str:
        """Return the id of a session, whose episode begins with its first request."""
        key: str | None = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
        if key is None:
            raise MCPError(_INVALID_REQUEST, "an episode needs a session: begin with the initialize handshake")
        if key not in self._episodes:
            if key not in self._starting:
                self._starting[key] = asyncio.create_task(self._begin(key))
                self._starting[key].add_done_callback(lambda _: self._starting.pop(key))
            await asyncio.shield(self._starting[key])
        return key

    async def _begin(self, key: str) -> None:
        episode = await self._begun()
        try:
            self._episodes.add(key, episode)
        except EnvUnavailableError as error:
            await episode.close()
            raise MCPError(_INTERNAL_ERROR, str(error)) from error

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
            raise MCPError(_INTERNAL_ERROR, f"{type(error).__name__}: {error}") from error
        return episode


class _ClosingApp:
    """Ends an episode with its MCP session, where the client says so; else its lease does."""

    def __init__(self, app: StreamableHTTPASGIApp, episodes: Leases[Episode]) -> None:
        self._app = app
        self._episodes = episodes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            key = dict(scope["headers"]).get(_SESSION_HEADER.encode(), b"").decode("latin-1")
            await self._episodes.close(key)
        await self._app(scope, receive, send)


async def _refuse_discovery(context: object, params: object) -> mcp_types.EmptyResult:
    raise MCPError(_METHOD_NOT_FOUND, "this server needs the initialize handshake")


def _result(content: Content, *, is_error: bool) -> mcp_types.CallToolResult:
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return mcp_types.CallToolResult(content=[_block(part) for part in parts], is_error=is_error)


def _block(part: dict[str, Any]) -> mcp_types.ContentBlock:
    url = part["image_url"]["url"] if part.get("type") == "image_url" else ""
    if url.startswith("data:"):
        mime_type, _, data = url.removeprefix("data:").partition(";base64,")
        return mcp_types.ImageContent(data=data, mime_type=mime_type)
    return mcp_types.TextContent(text=part.get("text", url))
