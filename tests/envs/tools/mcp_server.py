"""An MCP server for tests: tools with a state, errors, images, a hang and a crash; over stdio or HTTP.

Usage: mcp_server.py [PORT]
"""

import os
import sys

import anyio
from mcp.server.mcpserver import Image, MCPServer

server = MCPServer("counter")
count = 0
PIXEL = bytes.fromhex("89504e470d0a1a0a")


@server.tool()
def add(amount: int) -> str:
    """Add to the count."""
    global count
    count += amount
    return str(count)


@server.tool()
def pid() -> str:
    return str(os.getpid())


@server.tool()
def fail(why: str) -> str:
    raise ValueError(why)


@server.tool()
def picture() -> Image:
    return Image(data=PIXEL, format="png")


@server.tool()
async def hang() -> str:
    await anyio.sleep_forever()
    return ""


@server.tool()
def crash() -> str:
    print("the disk is on fire", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
