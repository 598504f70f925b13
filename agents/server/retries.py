"""Requests that are asked again: what runs or was answered already serves them, and nothing is sampled twice."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...errors import EngineError

Result = TypeVar("Result")


class SessionClosedError(EngineError):
    """A session ended while a request of it ran; what would have come of it is lost."""


@dataclass(frozen=True)
class Asked:
    """How to know a request again.

    Attributes:
        digest: Of all that it says.
        key: Its Idempotency-Key.
        is_retry: The client says that it has sent it before.
    """

    digest: bytes
    key: str | None = None
    is_retry: bool = False


class KeyReusedError(ValueError):
    """An Idempotency-Key came with another request than before."""


@dataclass(eq=False)
class _Running(Generic[Result]):
    task: "asyncio.Task[Result]"
    asked: Asked
    num_waiting: int = 0


class Requests(Generic[Result]):
    """The requests of one session; each is cancelled when nobody waits for it any more."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, _Running[Result]] = {}
        self._by_key: dict[str, _Running[Result]] = {}
        self._running: set[_Running[Result]] = set()
        self._is_closed = False

    @property
    def num_running(self) -> int:
        """Requests that are not answered yet."""
        return len(self._running)

    async def once(self, asked: Asked, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Return what `make` comes to, or what it came to when this was asked before.

        Raises:
            KeyReusedError: The key belongs to another request.
            SessionClosedError: `close` was called.
        """
        if self._is_closed:
            raise SessionClosedError("the session is closed")
        known = self._known(asked)
        return await self._wait(known or self._begin(asked, make))

    async def close(self) -> None:
        """Cancel what runs, and wait for its end."""
        self._is_closed = True
        tasks = [each.task for each in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known(self, asked: Asked) -> _Running[Result] | None:
        by_key = self._by_key.get(asked.key) if asked.key else None
        if by_key is not None:
            if by_key.asked.digest != asked.digest:
                raise KeyReusedError(f"the Idempotency-Key {asked.key!r} came with another request before")
            return by_key
        return self._by_digest.get(asked.digest) if asked.is_retry else None

    def _begin(self, asked: Asked, make: Callable[[], Coroutine[Any, Any, Result]]) -> _Running[Result]:
        entry = _Running(asyncio.create_task(make()), asked)
        self._running.add(entry)
        self._by_digest[asked.digest] = entry
        if asked.key:
            self._by_key[asked.key] = entry
        entry.task.add_done_callback(lambda _: self._end(entry))
        return entry

    def _end(self, entry: _Running[Result]) -> None:
        self._running.discard(entry)
        if entry.task.cancelled() or entry.task.exception() is not None:
            self._forget(entry)

    def _forget(self, entry: _Running[Result]) -> None:
        asked = entry.asked
        if self._by_digest.get(asked.digest) is entry:
            del self._by_digest[asked.digest]
        if asked.key and self._by_key.get(asked.key) is entry:
            del self._by_key[asked.key]

    async def _wait(self, entry: _Running[Result]) -> Result:
        entry.num_waiting += 1
        try:
            return await asyncio.shield(entry.task)
        except asyncio.CancelledError:
            if self._is_closed and entry.task.cancelled():
                raise SessionClosedError("the session was closed while this request ran") from None
            raise
        finally:
            entry.num_waiting -= 1
            if not entry.num_waiting and not entry.task.done():
                entry.task.cancel()
                self._forget(entry)  # its end may take a while, and who asks again meanwhile wants an answer
