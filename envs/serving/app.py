"""The HTTP environment server: `/reset`, `/step`, `/close`, `/tasks`, `/info`, `/health`."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import ConfigError, EnvLostError, EnvUnavailableError
from ..base import AsyncEnv, Env
from ..task import Split, Task
from .service import EnvService
from .wire import BadRequestError, Json, encoded, failure_to_json, task_of

if TYPE_CHECKING:
    from .mcp_mount import McpMount

MAX_BODY_BYTES = 16 << 20
# What the client did wrong, or may do again; everything else is a failure of the environment.
_STATUSES: dict[type[Exception], int] = {
    BadRequestError: 400,
    ConfigError: 422,
    EnvLostError: 404,
    EnvUnavailableError: 503,
}
_FAILED = 500


def env_app(service: EnvService, key: str, mcp: "McpMount | None" = None) -> ASGIApp:
    """Return the application; all but `/health` wants `Authorization: Bearer KEY`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sweeping = asyncio.create_task(service.sessions.sweep_forever())
        try:
            if mcp is None:
                yield
            else:
                async with mcp.running():
                    yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await service.sessions.close_all()

    routes: list[BaseRoute] = [
        Route("/health", _health),
        Route("/info", _answering(service, _info)),
        Route("/tasks", _answering(service, _tasks)),
        Route("/reset", _answering(service, _reset), methods=["POST"]),
        Route("/step", _answering(service, _step), methods=["POST"]),
        Route("/close", _answering(service, _close), methods=["POST"]),
    ]
    if mcp is not None:
        routes.append(Route("/mcp", mcp.app))
    return _Guarded(Starlette(routes=routes, lifespan=lifespan), key)


class _Guarded:
    """Lets nobody in without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._wanted = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] == "lifespan" or scope["path"] == "/health" or hmac.compare_digest(given, self._wanted):
            await self._app(scope, receive, send)
            return
        refusal = failure_to_json(
            BadRequestError("wanted the header Authorization: Bearer KEY, with this server's key")
        )
        await JSONResponse(refusal, 401)(scope, receive, send)


Answer = Callable[[EnvService, Request], Awaitable[Json]]


def _answering(service: EnvService, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return Response(encoded(await answer(service, request)), media_type="application/json")
        except Exception as error:  # whatever an environment raises, its client is told
            status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), _FAILED)
            return Response(encoded(failure_to_json(error)), status, media_type="application/json")

    return endpoint


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _info(service: EnvService, request: Request) -> Json:
    env_class: type[Env] | type[AsyncEnv] = service.factory.env_class
    return {
        "environment": service.factory.spec,
        "wants_query": env_class.wants_query,
        "lease_s": service.limits.lease_s,
        "sessions": len(service.sessions),
    }


async def _tasks(service: EnvService, request: Request) -> Json:
    split, seed = request.query_params.get("split", "train"), request.query_params.get("seed", "0")
    if split not in ("train", "eval") or not seed.isdecimal():
        raise BadRequestError(f"wanted split=train or eval and a whole number as seed, got {split!r} and {seed!r}")
    return {"size": len(service.tasks(cast(Split, split), int(seed)))}


async def _reset(service: EnvService, request: Request) -> Json:
    body = await _body(request)
    task, seed = body.get("task"), body.get("seed")
    if seed is not None and not isinstance(seed, int):
        raise BadRequestError(f"seed is a whole number, got {seed!r}")
    chosen: Task | None = None
    if isinstance(task, dict) and "index" in task:
        chosen = service.task_at(task.get("split", "train"), task.get("seed", 0), task["index"])
    elif task is not None:
        chosen = task_of(task)
    return await service.begin(chosen, seed)


async def _step(service: EnvService, request: Request) -> Json:
    body = await _body(request)
    turn = body.get("turn")
    if turn is not None and not isinstance(turn, int):
        raise BadRequestError(f"turn is a whole number, got {turn!r}")
    return await service.step(_session_id(body), body.get("action"), turn)


async def _close(service: EnvService, request: Request) -> Json:
    await service.sessions.close(_session_id(await _body(request)))
    return {}


def _session_id(body: Json) -> str:
    key = body.get("session_id")
    if not isinstance(key, str):
        raise BadRequestError(f"wanted the session_id that reset gave, got {key!r}")
    return key


async def _body(request: Request) -> Json:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise BadRequestError(f"a body may have {MAX_BODY_BYTES} bytes")
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError(f"the body is a JSON object, got {type(value).__name__}")
    return value
