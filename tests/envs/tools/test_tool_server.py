"""Tools behind real HTTP servers."""

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.envs.tools import http_client, tool_server
from turngym.envs.tools.tool_server import ToolServer
from turngym.errors import ConfigError, DeadlineError, ToolServerError

TASK = Task("t", prompt="p")
SCHEMAS = [{"type": "function", "function": {"name": name}} for name in ("add", "echo", "odd", "none", "blob", "moved")]


def call(name, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Server:
    """Counts per session, and fails when told to."""

    def __init__(self, schemas: object = SCHEMAS) -> None:
        self.schemas = schemas
        self.totals: dict[str, int] = {}
        self.statuses: list[int] = []  # of the next requests, before it does as asked
        self.asked: list[str] = []
        self.at_once = asyncio.Event()
        self.num_now = 0
        self.app = Starlette(
            routes=[
                Route("/openapi.json", self.described),
                Route("/items/{id}", self.item),
                Route("/{name}", self.called, methods=["POST"]),
            ]
        )

    async def described(self, request: Request) -> Response:
        self.asked.append("schemas")
        return JSONResponse(self.schemas)

    async def item(self, request: Request) -> Response:
        self.asked.append("item")
        if self.statuses:
            return PlainTextResponse("busy", self.statuses.pop(0))
        return JSONResponse({"id": request.path_params["id"], "cookies": request.cookies})

    async def called(self, request: Request) -> Response:
        name, arguments = request.path_params["name"], await request.json()
        self.asked.append(name)
        if self.statuses:
            return PlainTextResponse("busy", self.statuses.pop(0))
        if name == "add":
            key = request.headers["x-session-id"]
            if not isinstance(arguments.get("amount"), int):
                return JSONResponse({"detail": "amount is a whole number"}, 422)
            self.totals[key] = self.totals.get(key, 0) + arguments["amount"]
            return JSONResponse({"total": self.totals[key]})
        if name == "echo":
            response = JSONResponse({"headers": request.headers.get("authorization"), "cookies": request.cookies})
            response.set_cookie("who", "me")
            return response
        if name == "odd":  # answers only once two ask
            self.num_now += 1
            if self.num_now == 2:
                self.at_once.set()
            await self.at_once.wait()
            return PlainTextResponse("met")
        if name == "none":
            return Response(status_code=204)
        if name == "moved":
            return RedirectResponse("/elsewhere")
        return Response(b"\x00" * 10, media_type="application/octet-stream")


@pytest.fixture(autouse=True)
def _no_server_is_known(monkeypatch) -> None:
    monkeypatch.setattr(tool_server, "_KNOWN", {})  # ports come again


async def begun(url, **options) -> ToolServer:
    env = ToolServer(url, **options)
    await env.reset(options={"task": TASK})
    return env


async def said(env, *calls) -> list[str]:
    messages, *_ = await env.step("".join(calls))
    return [message["content"] for message in messages]


async def test_each_episode_has_a_state_of_its_own_and_schemas_are_read_once(live):
    server = Server()
    url = live(server.app)
    first, second = await begun(url), await begun(url)
    assert await said(first, call("add", amount=2)) == ['{"total":2}']
    assert await said(second, call("add", amount=3)) == ['{"total":3}']
    assert await said(first, call("add", amount=5)) == ['{"total":7}']
    assert server.asked.count("schemas") == 1
    await first.close()
    assert asyncio.get_running_loop() in http_client._SHARED
    await second.close()
    assert asyncio.get_running_loop() not in http_client._SHARED  # the last to leave closes the client


async def test_what_the_model_did_wrong_goes_back_to_it(live):
    env = await begun(live(Server().app))
    assert await said(env, call("add", amount="x"), call("ad"), call("none"), call("blob")) == [
        'Error: 422: {"detail":"amount is a whole number"}',
        "Error: There is no tool 'ad'. Did you mean 'add'?",
        "done (204)",
        "[application/octet-stream, 10 bytes]",
    ]
    await env.close()


async def test_calls_of_one_answer_run_at_once(live):
    env = await begun(live(Server().app))
    assert await said(env, call("odd"), call("odd")) == ["met", "met"]
    await env.close()


async def test_headers_are_sent_and_cookies_are_not_kept(live):
    env = await begun(live(Server().app), headers={"Authorization": "Bearer k"})
    for _ in range(2):
        assert json.loads((await said(env, call("echo")))[0]) == {"headers": "Bearer k", "cookies": {}}
    await env.close()


@pytest.mark.slow
async def test_a_server_that_fails_fails_the_episode_and_posts_are_not_repeated(live):
    server = Server()
    env = await begun(live(server.app))
    for status in (500, 503):
        server.statuses = [status]
        with pytest.raises(ToolServerError, match=f"answers {status}: busy"):
            await env.step(call("add", amount=1))
    assert server.asked.count("add") == 2
    server.statuses = [429, 429]  # nothing was done, so it may be asked again
    assert await said(env, call("add", amount=1)) == ['{"total":1}']
    assert server.asked.count("add") == 5
    with pytest.raises(ToolServerError, match="a redirect"):
        await env.step(call("moved"))
    await env.close()


@pytest.mark.slow
async def test_what_changes_nothing_is_asked_again(live):
    parameter = {"name": "id", "in": "path", "schema": {"type": "string"}}
    server = Server(
        {"openapi": "3.1.0", "paths": {"/items/{id}": {"get": {"operationId": "item", "parameters": [parameter]}}}}
    )
    env = await begun(live(server.app))
    server.statuses = [503, 502]
    assert await said(env, call("item", id="a")) == ['{"id":"a","cookies":{}}']
    server.statuses = [503, 503, 503]
    with pytest.raises(ToolServerError, match="answers 503"):
        await env.step(call("item", id="a"))
    assert server.asked.count("item") == 6
    await env.close()


@pytest.mark.slow
async def test_no_answer_in_time_fails_the_episode(live):
    env = await begun(live(Server().app), call_timeout_s=0.2)
    with pytest.raises(DeadlineError, match=r"no answer within 0\.2 s"):
        await env.step(call("odd"))  # nobody else asks
    await env.close()


@pytest.mark.slow
async def test_a_server_that_is_down_or_is_none_fails_the_episode(live):
    env = ToolServer("http://127.0.0.1:9")
    with pytest.raises(ToolServerError, match="is the server up"):
        await env.reset(options={"task": TASK})
    await env.close()
    for schemas, told in (({"swagger": "2.0"}, "neither an OpenAPI 3"), ([], "describes no tool"), ([7], "as 7")):
        env = ToolServer(live(Server(schemas).app))
        with pytest.raises(ToolServerError, match=told):
            await env.reset(options={"task": TASK})
        await env.close()
    env = ToolServer(live(Server().app), schemas_path="/nowhere/at/all")
    with pytest.raises(ToolServerError, match="answers 404; give schemas_path"):
        await env.reset(options={"task": TASK})
    await env.close()


@pytest.mark.parametrize("wrong", [{"url": "localhost:80"}, {"url": "http://a", "call_path": "/call"}, {"url": 7}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ConfigError):
        resolve("ToolServer", wrong)()
