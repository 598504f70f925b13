"""An MCP server's tools, for one episode alone or shared by all of an event loop."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import ToolError
from ..task import Task
from .calls import Schema, schema_name
from .mcp_connection import McpConnection
from .mcp_results import content_of
from .mcp_target import McpTarget
from .toolbox import Content, unknown_tool


class McpToolbox:
    """The tools of one episode.

    Args:
        target: The server.
        is_shared: Use one connection with other episodes; the last to close it ends it.
        with_images: Pass images on to the model, which must be able to see.
    """

    def __init__(self, target: McpTarget, *, is_shared: bool = False, with_images: bool = False) -> None:
        self._target = target
        self._is_shared = is_shared
        self._with_images = with_images
        self._connection: McpConnection | None = None

    @property
    def schemas(self) -> Sequence[Schema]:
        """What the model is told of the tools."""
        return self._connection.schemas if self._connection else []

    async def open(self, task: Task) -> None:
        """Start or reach the server."""
        self._connection = _take(self._target) if self._is_shared else McpConnection(self._target)
        await self._connection.open()

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Content:
        """Run one call."""
        if self._connection is None or name not in map(schema_name, self.schemas):
            raise ToolError(unknown_tool(name, self.schemas))
        result = await self._connection.call(name, arguments, timeout_s)
        return content_of(result, with_images=self._with_images)

    async def close(self) -> None:
        """Leave the server."""
        connection, self._connection = self._connection, None
        if connection is not None and (not self._is_shared or _is_last(connection)):
            await connection.close()


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[McpTarget, McpConnection]] = WeakKeyDictionary()
_NUM_USERS: WeakKeyDictionary[McpConnection, int] = WeakKeyDictionary()


def _take(target: McpTarget) -> McpConnection:
    """Return the connection of this loop, a new one where there is none or it is gone."""
    of_loop = _SHARED.setdefault(asyncio.get_running_loop(), {})
    if target not in of_loop or not of_loop[target].is_alive:
        of_loop[target] = McpConnection(target)
    _NUM_USERS[of_loop[target]] = _NUM_USERS.get(of_loop[target], 0) + 1
    return of_loop[target]


def _is_last(connection: McpConnection) -> bool:
    """Count one user less, and say whether that was the last."""
    _NUM_USERS[connection] -= 1
    if _NUM_USERS[connection]:
        return False
    of_loop = _SHARED.get(asyncio.get_running_loop(), {})
    if of_loop.get(connection.target) is connection:
        del of_loop[connection.target]
    return True
