"""What an MCP server says, as tools know it: schemas, contents, and which errors are the model's affair."""

from typing import TYPE_CHECKING, Any

import pydantic_core

from ...errors import ToolError, ToolServerError
from .calls import Schema
from .media import media_text, part_text
from .toolbox import Content

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

_MOST_PAGES = 100
# JSON-RPC's own: the connection, the request's form or the server itself failed. Others answer what was asked for.
_FAILURES = frozenset({-32700, -32600, -32601, -32603, -32000, -32001})


async def schemas_of(client: "Client") -> list[Schema]:
    """Ask for all tools, page by page."""
    schemas: list[Schema] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
            schemas.append({"type": "function", "function": function})
        cursor = page.next_cursor
        if cursor is None:
            return schemas
    raise ToolServerError(f"an MCP server lists its tools on more than {_MOST_PAGES} pages")


def content_of(result: "CallToolResult", *, with_images: bool) -> Content:
    """Return what a call gave.

    Raises:
        ToolError: The tool says that it failed.
    """
    parts = [_part(block, with_images) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [_text(pydantic_core.to_json(result.structured_content).decode())]
    if all("text" in part for part in parts):
        text = "\n".join(part["text"] for part in parts)
        if result.is_error:
            raise ToolError(text or "the tool failed and does not say why")
        return text
    if result.is_error:
        raise ToolError("\n".join(map(part_text, parts)))
    return parts


def is_refusal(error: Exception) -> bool:
    """Say whether a server refuses one call, such as one of a tool that it has not; what is else has failed."""
    from mcp import MCPError

    return isinstance(error, MCPError) and error.code not in _FAILURES


def told(error: BaseException) -> str:
    """Return what an error says; of a group, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _part(block: Any, with_images: bool) -> dict[str, Any]:  # Any: a union of the SDK's, told apart by its type
    if block.type == "text":
        return _text(block.text)
    if block.type == "image" and with_images:
        return {"type": "image_url", "image_url": {"url": f"data:{block.mime_type};base64,{block.data}"}}
    if block.type in ("image", "audio"):
        return _text(media_text(block.type, block.mime_type, block.data))
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return _text(f"[{block.resource.uri}]" if text is None else text)
    return _text(f"[{getattr(block, 'uri', block.type)}]")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
