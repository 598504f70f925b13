"""A connection to an MCP server, owned by a task of its own, so that a process it starts ends with it.

The SDK's contexts must be left by the task that entered them, and an episode's calls come under deadlines and
cancellations of their own. So the owner enters and leaves, and calls only pass through.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

from ...errors import DeadlineError, MissingPackageError, ToolError, ToolServerError
from .calls import Schema
from .mcp_results import is_refusal, schemas_of, told
from .mcp_target import McpTarget

if TYPE_CHECKING:
    import anyio
    from mcp import Client
    from mcp.types import CallToolResult

_CLOSE_TIMEOUT_S = 15.0  # the SDK's own steps, from closing stdin to SIGKILL, take at most half of it
_LOG_BYTES = 1000
_owners: set[asyncio.Task[None]] = set()  # a loop holds its tasks only weakly


class McpConnection:
    """One connection; `open` may be awaited by several, `close` ends it for all."""

    def __init__(self, target: McpTarget) -> None:
        self.target = target
        self.schemas: list[Schema] = []
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._log: IO[bytes] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether calls may be made, as far as is known."""
        return self._owner is None or not (self._owner.done() or self._stop.is_set())

    async def open(self) -> None:
        """Start the server, or reach it, and ask for its tools.

        Raises:
            ToolServerError: It cannot be had.
            DeadlineError: It took too long.
        """
        if self._owner is None:
            self._owner = asyncio.create_task(self._own())
            _owners.add(self._owner)
            self._owner.add_done_callback(_owners.discard)
        deadline = asyncio.timeout(self.target.start_timeout_s)
        try:
            async with deadline:
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlineError(
                f"{self.target.name} was not ready within {self.target.start_timeout_s:g} s{self._said()}"
            ) from error

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> "CallToolResult":
        """Call a tool.

        Raises:
            ToolError: The server refuses the call as it is, or a server that is this episode's own takes too long.
            DeadlineError: Any other server takes too long.
            ToolServerError: The server is gone, or breaks its protocol.
        """
        if self._client is None or self._stop.is_set():
            raise self._lost("is not connected")
        deadline = asyncio.timeout(timeout_s)
        try:
            async with deadline:
                return await self._client.call_tool(name, dict(arguments))
        except TimeoutError as error:
            if not deadline.expired():
                raise self._lost(told(error)) from error
            if self.target.command is not None:
                raise ToolError(f"{name} took longer than {timeout_s:g} s and was given up") from error
            raise DeadlineError(f"{self.target.name} did not answer {name} within {timeout_s:g} s") from error
        except Exception as error:
            if is_refusal(error):
                raise ToolError(str(error)) from error
            self._stop.set()
            raise self._lost(told(error)) from error

    async def close(self) -> None:
        """Leave the server; a process that was started for it has ended by then."""
        self._stop.set()
        if self._owner is not None:
            # If this wait is cancelled the owner goes on ending by itself.
            await asyncio.wait([self._owner], timeout=_CLOSE_TIMEOUT_S)

    async def _own(self) -> None:
        try:
            await asyncio.to_thread(_import_sdk)  # it takes a second or more
            with tempfile.TemporaryFile() as self._log:
                try:
                    await self._be_connected(self._log)
                except Exception as error:
                    self._fail(self._lost(told(error)))
                self._fail(self._lost("was given up while it started"))
        except MissingPackageError as error:
            self._fail(error)

    async def _be_connected(self, log: IO[bytes]) -> None:
        import anyio
        from mcp import Client

        with anyio.CancelScope() as starting:
            stopping = asyncio.create_task(_cancel_when(self._stop, starting))
            try:
                transport = self.target.transport(log)
                async with Client(transport, mode=self.target.mode, cache=None) as client:
                    self.schemas = await schemas_of(client)
                    self._client = client
                    if not self._ready.done():
                        self._ready.set_result(None)
                    stopping.cancel()
                    await self._stop.wait()
            finally:
                stopping.cancel()
                self._client = None

    def _fail(self, error: Exception) -> None:
        self._stop.set()
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # marks it as seen, should nobody wait any more

    def _lost(self, why: str) -> ToolServerError:
        return ToolServerError(f"{self.target.name}: {why}{self._said()}")

    def _said(self) -> str:
        """Return the end of what the process wrote to stderr."""
        if self._log is None or self._log.closed:
            return ""
        number = self._log.fileno()
        # Without moving the place where the process, which shares it, writes next.
        end = os.pread(number, _LOG_BYTES, max(0, os.fstat(number).st_size - _LOG_BYTES))
        text = end.decode(errors="replace").strip()
        return f"; it wrote: {text}" if text else ""


async def _cancel_when(event: asyncio.Event, scope: "anyio.CancelScope") -> None:
    await event.wait()
    scope.cancel()


def _import_sdk() -> None:
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"the environment MCP needs the package mcp: pip install 'turngym[mcp]' ({error})"
        ) from error
