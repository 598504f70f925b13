"""Environments as MCP servers, asked by the SDK's own client and by our environment."""

from contextlib import asynccontextmanager

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from turngym.envs.base import Env
from turngym.envs.factory import EnvFactory
from turngym.envs.resolution import resolve
from turngym.envs.serving.app import env_app
from turngym.envs.serving.limits import ServeLimits
from turngym.envs.serving.mcp_mount import McpMount
from turngym.envs.serving.service import EnvService
from turngym.envs.task import Task
from turngym.envs.tools.mcp_env import MCP
from turngym.envs.tools.tool_env import ToolEnv
from turngym.errors import EnvError

KEY = "secret"


class Counter:
    """Counts."""

    num_open = 0

    def __init__(self) -> None:
        self.total = 0
        type(self).num_open += 1

    def add(self, amount: int) -> int:
        """Add to the count."""
        self.total += amount
        return self.total

    def lose(self) -> int:
        raise EnvError("the database is gone")

    def close(self) -> None:
        type(self).num_open -= 1


@pytest.fixture
def serve(live):
    def start(factory) -> tuple[str, McpMount, EnvService]:
        service = EnvService(factory, ServeLimits())
        mount = McpMount(service)
        return live(env_app(service, KEY, mount)), mount, service

    return start


@asynccontextmanager
async def client_of(url, mode):
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def text(result) -> str:
    return "".join(block.text for block in result.content)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_environment_with_tools_offers_them_and_each_session_has_a_state(serve, mode):
    Counter.num_open = 0
    url, mount, _ = serve(EnvFactory("counter", ToolEnv, {"tools": Counter}))
    async with client_of(url, mode) as first, client_of(url, mode) as second:
        (add, lose) = (await first.list_tools()).tools
        assert (add.name, add.description, add.input_schema["required"]) == ("add", "Add to the count.", ["amount"])
        assert lose.name == "lose"
        assert text(await first.call_tool("add", {"amount": 2})) == "2"
        assert text(await second.call_tool("add", {"amount": 5})) == "5"
        assert text(await first.call_tool("add", {"amount": 2})) == "4"
        refused = await first.call_tool("add", {"amount": "x"})
        assert refused.is_error
        assert "valid integer" in text(refused)
        with pytest.raises(MCPError, match="EnvError: the database is gone"):
            await first.call_tool("lose", {})
        assert len(mount.episodes) == 2
    assert len(mount.episodes) == 0  # they ended with their sessions
    assert Counter.num_open == 0


async def test_any_other_offers_reset_and_step(serve):
    url, _, service = serve(resolve("Guess"))
    async with client_of(url, "legacy") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["reset", "step"]
        early = await client.call_tool("step", {"action": "1"})
        assert (early.is_error, text(early)) == (True, "no episode is running; call reset first")
        assert (await client.call_tool("reset", {"index": -1})).is_error
        assert "whole number from 1 to 20" in text(await client.call_tool("reset", {"index": 3, "split": "eval"}))
        for guess in range(1, 7):
            said = text(await client.call_tool("step", {"action": str(guess)}))
        assert '"truncated": false' in said
        assert '"terminated": true' in said
        over = await client.call_tool("step", {"action": "1"})
        assert "the episode is over" in text(over)
    assert len(service.sessions) == 0


async def test_our_own_environment_plays_it(serve):
    url, *_ = serve(EnvFactory("counter", ToolEnv, {"tools": Counter}))
    env = MCP(url=f"{url}/mcp", headers={"Authorization": f"Bearer {KEY}"})
    await env.reset(options={"task": Task("t", prompt="p")})
    messages, *_ = await env.step('<tool_call>{"name": "add", "arguments": {"amount": 3}}</tool_call>')
    assert messages[0]["content"] == "3"
    await env.close()


async def test_nobody_comes_in_without_the_key(serve):
    url, *_ = serve(resolve("Guess"))
    async with httpx2.AsyncClient() as client:
        assert (await client.post(f"{url}/mcp", json={})).status_code == 401


class Pictures(Env):
    """Shows a picture, and one that lies elsewhere."""

    def reset(self, *, seed=None, options=None):
        return self._shown(), {}

    def step(self, action):
        return self._shown(), 1.0, True, False, {}

    def tasks(self, split, seed):
        return [Task("t")]

    def _shown(self):
        urls = ("data:image/png;base64,aGVsbG8h", "https://nowhere/a.png")
        pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        parts = [{"type": "text", "text": "What is it? "}, *pictures, {"type": "input_audio", "input_audio": {}}]
        return [{"role": "user", "content": parts}]


async def test_pictures_are_given_and_what_cannot_be_given_is_said(serve):
    url, *_ = serve(EnvFactory("Pictures", Pictures))
    async with client_of(url, "legacy") as client:
        for name, arguments in (("reset", {}), ("step", {"action": "a"})):
            first, picture, link = (await client.call_tool(name, arguments)).content
            words = "What is it? [image of type image/png, 6 bytes][image at https://nowhere/a.png][input_audio]"
            assert words in first.text
            assert (picture.type, picture.mime_type, picture.data) == ("image", "image/png", "aGVsbG8h")
            assert link.text == "[image at https://nowhere/a.png]"
