"""What a client gets while the engine works: the answer alone, or a stream that shows signs of life until then."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...errors import EngineError
from .endpoints import Outcome

SIGN = b": the engine works\n\n"  # a comment, which readers of server-sent events skip
SIGN_EVERY_S = 10.0
# What goes wrong at once is told by the status, and an answer that is there by then comes with its head.
HEAD_AFTER_S = 1.0

_MEDIA_TYPE = "text/event-stream"


class Work:
    """A request while it is worked on, as long as its client is there."""

    def __init__(self, request: Request, work: Coroutine[Any, Any, Outcome]) -> None:  # Any: what coroutines take
        self._task = asyncio.create_task(work)
        self._gone = asyncio.create_task(_disconnected(request))

    async def is_done(self, within_s: float | None = None) -> bool:
        """Wait, and say whether it is done.

        Raises:
            ClientDisconnect: The client went before.
        """
        await asyncio.wait((self._task, self._gone), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        if self._gone.done() and not self._task.done():
            raise ClientDisconnect
        return self._task.done()

    def outcome(self) -> Outcome:
        """Return what it came to, or raise what went wrong."""
        if self._task.cancelled():  # by the engine: the client is there
            raise EngineError("the request was cancelled before it was answered; ask again")
        return self._task.result()

    async def end(self) -> None:
        """Cancel it, unless it is done."""
        tasks = (self._task, self._gone)
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LateStream(Response):
    """A stream that begins before there is anything to tell.

    Args:
        work: Ends with it.
        failed: Returns the events that tell of an error.
    """

    def __init__(self, work: Work, failed: Callable[[Exception], bytes]) -> None:
        super().__init__(media_type=_MEDIA_TYPE)
        del self.headers["content-length"]  # nobody knows yet
        self._work = work
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head and signs of life, then what the work came to."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            is_done = False
            while not is_done:
                await send({"type": "http.response.body", "body": SIGN, "more_body": True})
                is_done = await self._work.is_done(SIGN_EVERY_S)
            await send({"type": "http.response.body", "body": self._events()})
        except ClientDisconnect:
            return
        finally:
            await self._work.end()

    def _events(self) -> bytes:
        try:
            return b"".join(self._work.outcome().events or ())
        except Exception as error:
            return self._failed(error)


async def answer(
    work: Work,
    streams: Callable[[], bool],
    whole: Callable[[Any], Response],  # Any: an object of JSON
    failed: Callable[[Exception], bytes],
) -> Response:
    """Return the response to a request; see `LateStream`.

    Args:
        work: What it waits for.
        streams: Whether the client asked for a stream; asked only when it matters.
        whole: Makes the response that is no stream.
        failed: Returns the events that tell of an error in a stream that has begun.

    Raises:
        ClientDisconnect: The client went.
        Exception: What went wrong before anything was sent.
    """
    is_late = False
    try:
        is_late = not await work.is_done(HEAD_AFTER_S) and streams()
        if is_late:
            return LateStream(work, failed)
        await work.is_done()
        outcome = work.outcome()
        if outcome.events is None:
            return whole(outcome.whole)
        return Response(b"".join(outcome.events), media_type=_MEDIA_TYPE)
    finally:
        if not is_late:
            await work.end()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
