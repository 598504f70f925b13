"""What clients hold on a server, by id: forgotten things are closed when their lease ends."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Protocol, TypeVar

from ...errors import EnvLostError, EnvUnavailableError

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that must be closed."""

    async def close(self) -> None:
        """Free what it holds."""
        ...


T = TypeVar("T", bound=Closable)


class _Lease(Generic[T]):
    def __init__(self, thing: T) -> None:
        self.thing = thing
        self.lock = asyncio.Lock()  # one call at a time
        self.used_at = time.monotonic()
        self.num_users = 0
        self.is_over = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self.num_users += 1
        try:
            yield
        finally:
            self.num_users -= 1
            self.used_at = time.monotonic()


class Leases(Generic[T]):
    """Things by id.

    Args:
        lease_s: How long one may lie unused before it is closed.
        most: How many there may be at once.
    """

    def __init__(self, lease_s: float, most: int) -> None:
        self.lease_s = lease_s
        self._most = most
        self._leases: dict[str, _Lease[T]] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: str) -> bool:
        return key in self._leases

    def add(self, key: str, thing: T) -> None:
        """Take a thing in.

        Raises:
            EnvUnavailableError: There are too many.
        """
        if len(self._leases) >= self._most:
            raise EnvUnavailableError(f"{self._most} sessions are open, as many as may be; close some, or come later")
        self._leases[key] = _Lease(thing)

    @asynccontextmanager
    async def using(self, key: str) -> AsyncIterator[T]:
        """Hold a thing for one call; calls of one thing come one after the other.

        Raises:
            EnvLostError: There is none of this id, or not any more.
        """
        lease = self._lease(key)
        async with lease.lock:
            if lease.is_over:
                raise EnvLostError(f"session {key!r} has been closed meanwhile")
            with lease.in_use():
                yield lease.thing

    @contextmanager
    def sharing(self, key: str) -> Iterator[T]:
        """Hold a thing that takes several calls at once; `close` does not wait for them.

        Raises:
            EnvLostError: There is none of this id.
        """
        lease = self._lease(key)
        with lease.in_use():
            yield lease.thing

    def _lease(self, key: str) -> _Lease[T]:
        if key not in self._leases:
            raise EnvLostError(f"there is no session {key!r}; it was closed, or lay unused for {self.lease_s:g} s")
        return self._leases[key]

    async def close(self, key: str) -> None:
        """Close a thing, once a call that runs has ended; nothing happens where there is none of this id."""
        lease = self._leases.pop(key, None)
        if lease is None:
            return
        async with lease.lock:
            lease.is_over = True
            try:
                await lease.thing.close()
            except Exception as error:
                _log.warning("closing session %s failed: %r", key, error)

    async def close_all(self) -> None:
        """Close everything."""
        await asyncio.gather(*map(self.close, list(self._leases)))

    async def sweep_forever(self) -> None:
        """Close what lies unused, again and again."""
        while True:
            await asyncio.sleep(self.lease_s / 4)
            await self.sweep()

    async def sweep(self) -> None:
        """Close what has lain unused for longer than its lease."""
        before = time.monotonic() - self.lease_s
        old = [key for key, each in self._leases.items() if each.used_at < before and not each.num_users]
        await asyncio.gather(*map(self.close, old))
