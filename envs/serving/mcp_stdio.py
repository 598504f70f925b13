"""An environment as an MCP server over standard input and output: one client, whose connection is an episode."""

import asyncio
import os
import signal

from mcp.server.stdio import stdio_server

from .mcp_answers import McpAnswers
from .service import EnvService

_CLIENT = "stdio"


async def serve_stdio(service: EnvService) -> None:
    """Serve until the client closes its end; what else is printed meanwhile goes to standard error.

    Where SIGINT or SIGTERM comes first, the process ends here, once its episode is closed.
    """
    answers = McpAnswers(service, lambda _: _CLIENT)
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with stdio_server() as (reading, writing):
        serving = asyncio.create_task(
            answers.server.run(reading, writing, answers.server.create_initialization_options())
        )
        stopping = asyncio.create_task(told.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await answers.episodes.close_all()
        await service.sessions.close_all()
        if not serving.done():
            os._exit(0)  # a thread waits for input, and nothing can end it
        await serving
