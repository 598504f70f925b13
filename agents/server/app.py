"""The HTTP application: who may ask, of which session, and what each path does."""

import hmac
import json
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..chat import ChatAgent
from .anthropic_api import count_tokens, messages
from .api_errors import ApiError
from .endpoints import Outcome, chat_completions, completions, detokenize, models, tokenize
from .refusals import last_events, logged, refusal
from .responses_api import responses
from .session import Session
from .stored_responses import StoredResponse, delete, input_items, retrieve
from .streams import Work, answer
from .wire import value_of

MAX_BODY_BYTES = 64 << 20
SESSION_HEADER = "x-turngym-session"
_GONE = 499  # nginx's word for it; nobody reads it

Generate = Callable[[Session, bytes, Any], Coroutine[Any, Any, Outcome]]  # Any: headers, and what coroutines take


def server_app(agent: ChatAgent, sessions: dict[str, Session], *, key: str, model: str) -> ASGIApp:
    """Return the application.

    Args:
        agent: Whose tokenizer `/tokenize` and `/detokenize` use.
        sessions: By their ids; others are refused.
        key: What clients must know, for all but `/health`.
        model: What `/v1/models` names; requests may name any.
    """

    def generating(generate: Generate) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            session = _session(sessions, request, body)
            work = Work(request, generate(session, body, request.headers))
            failed = partial(_failed, request)
            return await answer(work, lambda: _value(body).get("stream") is True, _as_json, failed)

        return _told(endpoint)

    def telling(tell: Callable[[ChatAgent, bytes], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return _as_json(tell(agent, await _body(request)))

        return _told(endpoint)

    def looking(look: Callable[[dict[str, StoredResponse], str, Any], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            session = _session(sessions, request, b"{}")
            return _as_json(look(session.responses, request.path_params["id"], request.query_params))

        return _told(endpoint)

    async def list_models(request: Request) -> Response:
        return _as_json(models(model))

    async def one_model(request: Request) -> Response:
        return _as_json({**models(model)["data"][0], "id": request.path_params["model"]})

    routes = [Route("/health", _health)]
    for prefix in ("/s/{session}", ""):
        routes += [
            Route(f"{prefix}/v1/chat/completions", generating(chat_completions), methods=["POST"]),
            Route(f"{prefix}/v1/completions", generating(completions), methods=["POST"]),
            Route(f"{prefix}/v1/responses", generating(responses), methods=["POST"]),
            Route(f"{prefix}/v1/responses/{{id}}", looking(retrieve)),
            Route(f"{prefix}/v1/responses/{{id}}", looking(delete), methods=["DELETE"]),
            Route(f"{prefix}/v1/responses/{{id}}/input_items", looking(input_items)),
            Route(f"{prefix}/v1/messages", generating(messages), methods=["POST"]),
            Route(f"{prefix}/v1/messages/count_tokens", telling(count_tokens), methods=["POST"]),
            Route(f"{prefix}/v1/models", _told(list_models)),
            Route(f"{prefix}/v1/models/{{model:path}}", _told(one_model)),
            Route(f"{prefix}/tokenize", telling(tokenize), methods=["POST"]),
            Route(f"{prefix}/detokenize", telling(detokenize), methods=["POST"]),
            Route(f"{prefix}/v1/tokenize", telling(tokenize), methods=["POST"]),
            Route(f"{prefix}/v1/detokenize", telling(detokenize), methods=["POST"]),
        ]
    return _Guarded(Starlette(routes=routes, exception_handlers={HTTPException: _no_such_path}), key)


class _Guarded:
    """Lets nobody in without the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/health" or self._knows_key(dict(scope["headers"])):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            "wanted this run's key, as `Authorization: Bearer KEY` or `x-api-key: KEY`", 401, code="invalid_api_key"
        )
        await refusal(error, scope["path"])(scope, receive, send)

    def _knows_key(self, headers: dict[bytes, bytes]) -> bool:
        kind, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        given = (bearer.strip() if kind.lower() == b"bearer" else b"", headers.get(b"x-api-key", b""))
        return any(hmac.compare_digest(each, self._key) for each in given)


def _told(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Tell the client of whatever goes wrong."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=_GONE)
        except Exception as error:
            return refusal(logged(request, error), request.url.path)

    return answering


def _failed(request: Request, error: Exception) -> bytes:
    return last_events(logged(request, error), request.url.path)


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return JSONResponse(ApiError(what, error.status_code).to_json(), error.status_code, headers=error.headers)


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _session(sessions: dict[str, Session], request: Request, body: bytes) -> Session:
    name = request.path_params.get("session") or request.headers.get(SESSION_HEADER) or _named_in(body)
    if name is None:
        raise ApiError(
            "wanted a session: in the URL (/s/ID/v1/...), the header X-TurnGym-Session, or the body's session_id",
            param="session_id",
        )
    if name not in sessions:
        raise ApiError(f"there is no session {name!r:.100}; it never was, or is over", 404, code="session_not_found")
    return sessions[name]


def _named_in(body: bytes) -> str | None:
    name = _value(body).get("session_id")
    return name if isinstance(name, str) else None


def _value(body: bytes) -> dict[str, Any]:
    """Return the object of JSON that a body holds; an empty one for any other value."""
    value = value_of(body)
    return value if isinstance(value, dict) else {}


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise ApiError(f"a body may have {MAX_BODY_BYTES} bytes", 413)
    return bytes(content)


def _as_json(value: Any) -> Response:
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    return Response(content, media_type="application/json")
