"""Errors as the clients of each API read them: as a body, or as the last event of a stream that has begun."""

import json
import logging

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .anthropic_replies import anthropic_error
from .api_errors import ApiError, api_error_of
from .replies import Json

_log = logging.getLogger(__name__)


def refusal(error: ApiError, path: str) -> Response:
    """Return the response that tells of an error."""
    return JSONResponse(_body(error, path), error.status)


def last_events(error: ApiError, path: str) -> bytes:
    """Return the events that tell of an error where the status was sent already."""
    if path.endswith("/v1/responses"):
        told = {"type": "error", "code": error.code, "message": str(error), "param": error.param, "sequence_number": 0}
        return _event("error", told)
    if "/v1/messages" in path:
        return _event("error", _body(error, path))
    return _event(None, _body(error, path)) + b"data: [DONE]\n\n"


def logged(request: Request, error: Exception) -> ApiError:
    """Return what a client is told of an error; what is no client's doing is logged."""
    told = api_error_of(error)
    if told.status >= 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return told


def _body(error: ApiError, path: str) -> Json:
    return anthropic_error(error) if "/v1/messages" in path else error.to_json()


def _event(kind: str | None, told: Json) -> bytes:
    named = "" if kind is None else f"event: {kind}\n"
    return f"{named}data: {json.dumps(told, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
