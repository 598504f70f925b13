"""One HTTP client per event loop, for all episodes that have a server open; its last user closes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from weakref import WeakKeyDictionary

import httpx

MAX_CONNECTIONS = 256
_LIMITS = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=64)
# Tells of a connection that was never made, so that nothing can have been done with what was asked.
NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class _Shared:
    def __init__(self) -> None:
        # Cookies would be one episode's in another's requests, so none are kept.
        cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self.client = httpx.AsyncClient(limits=_LIMITS, cookies=cookies, verify=_trusted(), timeout=None)
        self.num_users = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
_trusted = cache(httpx.create_ssl_context)  # reading the certificates takes longer than most requests


class ClientUse:
    """One user's hold on this loop's client; it has no timeouts of its own, so each request needs a deadline."""

    def __init__(self) -> None:
        self._shared: _Shared | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        """The client of this loop."""
        if self._shared is None:
            loop = asyncio.get_running_loop()
            if loop not in _SHARED:
                _SHARED[loop] = _Shared()
            self._shared = _SHARED[loop]
            self._shared.num_users += 1
        return self._shared.client

    async def close(self) -> None:
        """Let go of it."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.num_users -= 1
        if not shared.num_users:
            loop = asyncio.get_running_loop()
            if _SHARED.get(loop) is shared:
                del _SHARED[loop]
            await shared.client.aclose()


@asynccontextmanager
async def client_in_use() -> AsyncIterator[httpx.AsyncClient]:
    """Hold this loop's client for a while."""
    use = ClientUse()
    try:
        yield use.client
    finally:
        await use.close()
