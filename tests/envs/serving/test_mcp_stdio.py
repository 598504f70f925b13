"""`turngym envs serve --stdio` as a process of its own, asked by the SDK's own client and by our environment."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from turngym.envs.task import Task
from turngym.envs.tools.mcp_env import MCP

pytestmark = pytest.mark.slow
ENVIRONMENT = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}  # clients pass on little of their own
TOOLS = """
import os
from pathlib import Path

print("this is no message of the protocol")

class Counter:
    def __init__(self):
        self.total = 0

    def add(self, amount: int) -> int:
        "Add to the count."
        print("nor this")
        os.system("echo nor this")
        self.total += amount
        return self.total

    def close(self):
        Path(__file__).with_name("closed").write_text(str(self.total))
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "tools.py").write_text(TOOLS)
    tools = ["--agent_args.tools", f"{tmp_path / 'tools.py'}:Counter"]
    return [sys.executable, "-m", "turngym", "envs", "serve", "ToolEnv", *tools, "--stdio"]


def text(result) -> str:
    return "".join(block.text for block in result.content)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_of_an_environment_have_a_state_until_the_client_goes(command, tmp_path, mode):
    server = StdioServerParameters(command=command[0], args=command[1:], env=ENVIRONMENT)
    async with asyncio.timeout(120):
        async with Client(stdio_client(server), mode=mode) as client:
            (add,) = (await client.list_tools()).tools
            assert (add.name, add.description) == ("add", "Add to the count.")
            assert text(await client.call_tool("add", {"amount": 2})) == "2"
            assert text(await client.call_tool("add", {"amount": 3})) == "5"
            refused = await client.call_tool("add", {"amount": "x"})
            assert (refused.is_error, "valid integer" in text(refused)) == (True, True)
        while not (tmp_path / "closed").exists():
            await asyncio.sleep(0.01)
    assert (tmp_path / "closed").read_text() == "5"


async def test_our_own_environment_plays_it(command, tmp_path):
    env = MCP(command=command, env=ENVIRONMENT, start_timeout_s=100.0)
    async with asyncio.timeout(120):
        await env.reset(options={"task": Task("t", prompt="p")})
        messages, *_ = await env.step('<tool_call>{"name": "add", "arguments": {"amount": 3}}</tool_call>')
        assert messages[0]["content"] == "3"
        await env.close()
    assert (tmp_path / "closed").read_text() == "3"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_closes_what_is_open(command, tmp_path, number):
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    begin = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", '
        b'"capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}}\n'
        b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n'
        b'{"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "add", "arguments": {"amount": 4}}}\n'
    )
    try:
        async with asyncio.timeout(120):
            process.stdin.write(begin)
            assert b'"serverInfo"' in await process.stdout.readline()
            assert b'"4"' in await process.stdout.readline()
            process.send_signal(number)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (tmp_path / "closed").read_text() == "4"


async def test_a_game_is_reset_and_step():
    arguments = ["-m", "turngym", "envs", "serve", "Guess", "--agent_args.high", "3", "--stdio"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=ENVIRONMENT)
    async with asyncio.timeout(120), Client(stdio_client(server)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["reset", "step"]
        assert "from 1 to 3" in text(await client.call_tool("reset", {}))
        assert '"terminated"' in text(await client.call_tool("step", {"action": "2"}))
