"""An environment as an MCP server over streamable HTTP: each MCP session is an episode."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import mcp.types as mcp_types
from mcp import MCPError
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from .leases import Leases
from .mcp_answers import INVALID_REQUEST, METHOD_NOT_FOUND, Context, McpAnswers
from .mcp_episodes import Episode
from .service import EnvService

_SESSION_HEADER = "mcp-session-id"


class McpMount:
    """The MCP side of a server.

    Args:
        service: The environment.
    """

    def __init__(self, service: EnvService) -> None:
        answers = McpAnswers(service, _session_of)
        # Newer versions of the protocol have no sessions, and an episode needs one; refused, clients shake hands.
        answers.server.add_request_handler("server/discover", mcp_types.RequestParams, _refuse_discovery)
        self.episodes = answers.episodes
        self._manager = StreamableHTTPSessionManager(answers.server, session_idle_timeout=service.limits.lease_s)
        self.app = _ClosingApp(StreamableHTTPASGIApp(self._manager), self.episodes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests while the context is open."""
        sweeping = asyncio.create_task(self.episodes.sweep_forever())
        try:
            async with self._manager.run():
                yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await self.episodes.close_all()


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


def _session_of(context: Context) -> str:
    key: str | None = context.request.headers.get(_SESSION_HEADER) if context.request is not None else None
    if key is None:
        raise MCPError(INVALID_REQUEST, "an episode needs a session: begin with the initialize handshake")
    return key


async def _refuse_discovery(context: object, params: object) -> mcp_types.EmptyResult:
    raise MCPError(METHOD_NOT_FOUND, "this server needs the initialize handshake")
