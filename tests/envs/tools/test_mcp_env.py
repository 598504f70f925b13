"""MCP servers as real processes: a tiny one that starts at once, and one that is built with the SDK."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest

from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.envs.tools import mcp_connection
from turngym.envs.tools.mcp_env import MCP
from turngym.errors import ConfigError, DeadlineError, EnvError, ToolServerError

TASK = Task("t", prompt="p")
HERE = Path(__file__).parent
PYTHON = sys.executable


def call(name, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def said(env, *calls) -> list:
    messages, *_ = await env.step("".join(calls))
    return [message["content"] for message in messages]


async def begun(env) -> MCP:
    await env.reset(options={"task": TASK})
    return env


class Tiny:
    """Makes environments, and knows what their servers noted."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def env(self, **options) -> MCP:
        return MCP(command=[PYTHON, str(HERE / "tiny_mcp.py"), str(self.notes)], **options)

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.lines if line != "ended"]

    @property
    def num_ended(self) -> int:
        return self.lines.count("ended")

    @property
    def lines(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
async def tiny(tmp_path):
    made = Tiny(tmp_path / "notes")
    async with asyncio.timeout(120):
        yield made
    until = time.monotonic() + 30
    while mcp_connection._owners or any(map(is_running, made.pids)):
        assert time.monotonic() < until, "a server outlived its episode"
        await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_each_episode_has_a_process_with_a_state(tiny):
    first, second = await begun(tiny.env()), await begun(tiny.env())
    assert len(set(tiny.pids)) == 2
    assert [schema["function"]["name"] for schema in first.toolbox.schemas][:3] == ["add", "refuse", "break"]
    assert await said(first, call("add", amount=2), call("add", amount=3)) == ["2", "5"]
    assert await said(second, call("add", amount=1)) == ["1"]
    await first.reset(options={"task": TASK})  # the next episode begins at nothing
    assert await said(first, call("add", amount=1)) == ["1"]
    await first.close()
    await second.close()
    assert tiny.num_ended == 3


@pytest.mark.slow
async def test_what_a_tool_says_of_its_failure_goes_to_the_model(tiny):
    env = await begun(tiny.env(call_timeout_s=0.3))
    assert await said(env, call("break"), call("refuse"), call("hang"), call("brake"), call("add", amount=1)) == [
        "Error: it broke",
        "Error: these arguments are refused",
        "Error: hang took longer than 0.3 s and was given up",
        "Error: There is no tool 'brake'. Did you mean 'break'?",
        "1",
    ]
    await env.close()


async def test_contents_become_text_and_images_if_wanted(tiny):
    env = await begun(tiny.env())
    assert await said(env, call("rich")) == ["look\n[image of type image/png, 3 bytes]\ninside\n[file:///b]"]
    await env.close()
    env = await begun(tiny.env(images=True))
    (content,) = await said(env, call("rich"))
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert [part["type"] for part in content] == ["text", "image_url", "text", "text"]
    await env.close()


async def test_a_server_that_crashes_fails_the_episode(tiny):
    env = await begun(tiny.env())
    with pytest.raises(ToolServerError, match="it wrote: the disk is on fire"):
        await env.step(call("add", amount=1) + call("crash"))
    with pytest.raises(ToolServerError, match="is not connected"):
        await env.step(call("add", amount=1))
    await env.close()


@pytest.mark.slow
async def test_a_server_that_does_not_start_fails_the_episode(tiny):
    for options, kind, told in (
        ({"env": {"TINY_MCP_DIES": "1"}}, ToolServerError, "it wrote: no licence"),
        ({"env": {"TINY_MCP_SLEEPS": "1"}, "start_timeout_s": 0.5}, DeadlineError, r"was not ready within 0\.5 s"),
    ):
        env = tiny.env(**options)
        with pytest.raises(kind, match=told):
            await begun(env)
        await env.close()
    env = MCP(command="/no/such/program --at all")
    with pytest.raises(ToolServerError, match="No such file"):
        await begun(env)
    await env.close()
    env = MCP(url="http://127.0.0.1:9/mcp")
    with pytest.raises(ToolServerError, match="ConnectError"):
        await begun(env)
    await env.close()


@pytest.mark.slow
async def test_no_process_outlives_a_cancellation(tiny):
    in_call, starting, stubborn = (
        await begun(tiny.env()),
        tiny.env(env={"TINY_MCP_SLEEPS": "1"}),
        await begun(tiny.env()),
    )
    tasks = [
        asyncio.create_task(in_call.step(call("hang"))),
        asyncio.create_task(begun(starting)),
        asyncio.create_task(stubborn.step(call("stay"))),  # it does not read that its input has ended
    ]
    while len(tiny.pids) < 3:
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(in_call.close(), starting.close(), stubborn.close())
    assert not any(map(is_running, tiny.pids))


async def test_a_close_that_is_cancelled_goes_on_by_itself(tiny):
    env = await begun(tiny.env())
    closing = asyncio.create_task(env.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)  # the fixture waits for the process to end


async def test_episodes_may_share_a_process(tiny):
    first, second = tiny.env(shared=True), tiny.env(shared=True)
    await asyncio.gather(begun(first), begun(second))
    assert len(tiny.pids) == 1
    assert await said(first, call("add", amount=2)) == ["2"]
    assert await said(second, call("add", amount=1)) == ["3"]
    await first.close()
    assert await said(second, call("add", amount=1)) == ["4"]
    with pytest.raises(ToolServerError):
        await second.step(call("crash"))
    third = await begun(tiny.env(shared=True))  # another one, since that is gone
    assert await said(third, call("add", amount=1)) == ["1"]
    await second.close()
    assert await said(third, call("add", amount=1)) == ["2"]
    await third.close()
    assert len(tiny.pids) == 2


def test_a_loop_that_ends_takes_its_servers_along(tmp_path):
    tiny = Tiny(tmp_path / "notes")

    async def forget() -> None:
        await begun(tiny.env())

    asyncio.run(forget())
    (pid,) = tiny.pids
    assert not is_running(pid)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"command": "a", "url": "http://a"},
        {"command": ""},
        {"url": "a:80"},
        {"url": "http://a", "env": {"A": "1"}},
        {"command": "a", "headers": {"A": "1"}},
        {"command": "a", "mode": "2026"},
        {"command": 7},
    ],
)
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ConfigError):
        resolve("MCP", wrong)()


@pytest.mark.slow
async def test_the_sdks_own_server_over_stdio_and_http(unused_tcp_port):
    over_http = await asyncio.create_subprocess_exec(PYTHON, str(HERE / "mcp_server.py"), str(unused_tcp_port))
    try:
        async with asyncio.timeout(200):
            while not await is_listening(unused_tcp_port):
                await asyncio.sleep(0.05)
            for env in (
                MCP(command=[PYTHON, str(HERE / "mcp_server.py")], start_timeout_s=120.0),
                MCP(url=f"http://127.0.0.1:{unused_tcp_port}/mcp"),
            ):
                await begun(env)
                names = [schema["function"]["name"] for schema in env.toolbox.schemas]
                assert names == ["add", "pid", "fail", "picture", "hang", "crash"]
                parameters = env.toolbox.schemas[0]["function"]["parameters"]
                assert parameters["required"] == ["amount"]
                contents = await said(env, call("add", amount=2), call("add", amount="x"), call("picture"))
                assert contents[0] == "2"
                assert "valid integer" in contents[1]
                assert contents[2] == "[image of type image/png, 9 bytes]"
                with pytest.raises(ToolServerError):
                    await env.step(call("crash"))
                await env.close()
            with pytest.raises(EnvError):  # it crashed
                await begun(env)
            await env.close()
    finally:
        if over_http.returncode is None:
            over_http.kill()
        await over_http.wait()


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
