"""One HTTP request of an environment: retried where that is safe, and a server that is down is a failure."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import httpx

from ...errors import DeadlineError, ToolError, ToolServerError
from .http_client import NOTHING_SENT

_MAX_BYTES = 4 << 20  # read of one answer
_TRIES = 3
_PAUSE_S = 0.2
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_TOO_MANY, _GATEWAY = 429, frozenset({502, 503, 504})


@dataclass(frozen=True)
class HttpRequest:
    """What is asked.

    Attributes:
        is_repeatable: Asking twice is as asking once, also where the method alone would not say so.
    """

    method: str
    url: str
    params: dict[str, Any] = field(default_factory=dict)  # Any: what a query can hold
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None  # JSON
    is_repeatable: bool = False


@dataclass(frozen=True)
class HttpAnswer:
    """What came: a status below 500, and as much of the body as is read."""

    status: int
    content_type: str
    body: bytes
    encoding: str

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(self.encoding, errors="replace")


async def ask(
    client: httpx.AsyncClient, request: HttpRequest, timeout_s: float, *, may_fail: bool = False
) -> HttpAnswer:
    """Send a request and return the answer, unless that says that the server could not do its work.

    A connection that was not made, and "too many requests", are tried again; so are a lost connection and a gateway's
    errors where the request may be repeated.

    Args:
        client: Whose requests have no deadline of their own.
        request: What is asked.
        timeout_s: Deadline, repetitions included.
        may_fail: An answer of 5xx is the caller's to read.

    Raises:
        ToolServerError: The server is down, or answers with 5xx or a redirect.
        DeadlineError: No answer came in time.
    """
    what = f"{request.method} {request.url}"
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            for tries_left in range(_TRIES - 1, -1, -1):
                answer = await _tried(client, request, what, is_last=not tries_left, may_fail=may_fail)
                if answer is not None:
                    return answer
                await asyncio.sleep(_PAUSE_S * (_TRIES - tries_left) * random.uniform(0.5, 1.5))
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise DeadlineError(f"{what}: no answer within {timeout_s:g} s") from error
    raise AssertionError("the last try returns or raises")


async def _tried(
    client: httpx.AsyncClient, request: HttpRequest, what: str, *, is_last: bool, may_fail: bool
) -> HttpAnswer | None:
    """Send a request once; None where it may be sent again."""
    is_repeatable = request.is_repeatable or request.method in _REPEATABLE
    try:
        answer = await _sent(client, request)
    except httpx.InvalidURL as error:  # the server's own URL was read before: an argument makes it so
        raise ToolError(f"the arguments make no URL: {error}") from error
    except httpx.HTTPError as error:
        if not is_last and (is_repeatable or isinstance(error, NOTHING_SENT)):
            return None
        raise ToolServerError(f"{what}: {type(error).__name__}: {error}; is the server up?") from error
    if not is_last and (answer.status == _TOO_MANY or (is_repeatable and answer.status in _GATEWAY)):
        return None
    if answer.status >= 500 and may_fail:
        return answer
    if answer.status >= 500 or answer.status == _TOO_MANY:
        raise ToolServerError(f"{what}: the server answers {answer.status}: {answer.text[:500]}")
    if 300 <= answer.status < 400:
        raise ToolServerError(f"{what}: the server answers {answer.status}, a redirect; give the URL it leads to")
    return answer


async def _sent(client: httpx.AsyncClient, request: HttpRequest) -> HttpAnswer:
    kind = {} if request.body is None else {"Content-Type": "application/json"}
    async with client.stream(
        request.method,
        request.url,
        params=request.params or None,
        headers={**kind, **request.headers},
        content=request.body,
    ) as response:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk[: _MAX_BYTES - len(content)]
            if len(content) == _MAX_BYTES:
                break
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return HttpAnswer(response.status_code, content_type, bytes(content), response.charset_encoding or "utf-8")
