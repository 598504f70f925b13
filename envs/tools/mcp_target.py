"""Which MCP server an environment talks to, and over what."""

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, TextIO, cast

from ...errors import ConfigError


@dataclass(frozen=True)
class McpTarget:
    """Which server: a command, or a URL.

    Attributes:
        command: A program and its arguments, for a server over stdio.
        url: Of a server over streamable HTTP.
        env: Environment variables of the command, beside a few harmless ones of this process.
        headers: Of every request to the URL.
        mode: `legacy` makes a session with a state; `auto` may agree on a protocol that has none.
        start_timeout_s: Deadline of its start.

    Raises:
        ConfigError: It names no server, or two.
    """

    command: tuple[str, ...] | None
    url: str | None
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    mode: str = "legacy"
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError("MCP wants either command, for a server over stdio, or url")
        if self.command == ():
            raise ConfigError("MCP wants a command that is not empty")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"MCP wants url as http://... or https://..., got {self.url!r}")
        if (self.env and self.url) or (self.headers and self.command):
            raise ConfigError("of MCP's arguments env belongs to command, and headers to url")
        if self.mode not in ("legacy", "auto"):
            raise ConfigError(f"MCP's mode is 'legacy' or 'auto', got {self.mode!r}")

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"the MCP server {self.url or shlex.join(self.command or ())!r}"

    def transport(self, log: IO[bytes]) -> Any:  # Any: the SDK's protocol of it is private
        """Return the way to the server, not yet entered; a process writes its stderr to `log`."""
        if self.command is None:
            return _over_http(self.url or "", dict(self.headers))
        from mcp import StdioServerParameters, stdio_client

        program, *arguments = self.command
        given = StdioServerParameters(command=program, args=arguments, env=dict(self.env))
        return stdio_client(given, errlog=cast(TextIO, log))  # of which only the number is used


@asynccontextmanager
async def _over_http(url: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    import httpx2  # the SDK's
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0, read=None)) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
