"""Reward functions behind HTTP: the protocol of `turngym serve-rm` and of OpenRLHF's servers."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import httpx

from ..errors import RewardError
from .loop_thread import LoopThread
from .reward import Reward, parse_rewards

TRIES = 5
PAUSE_S = 1.0


class HttpReward:
    """POSTs `{"query", "prompts", "labels"}` to one of several URLs in turn; a failed try goes on to the next.

    Args:
        urls: Servers that give the same rewards.
        timeout_s: Deadline of one try.
        pause_s: Wait between tries.
        transport: In place of the network, for tests.
    """

    def __init__(
        self,
        urls: Sequence[str],
        timeout_s: float,
        pause_s: float = PAUSE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._urls = tuple(urls)
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._turns = itertools.count()
        self._transport = transport
        # Connections belong to one loop, and callers may come from several.
        self._loop = LoopThread("turngym-reward-http")
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[Reward]:
        """Ask a server, up to five times."""
        body = {"query": list(queries), "prompts": list(prompts), "labels": list(labels)}
        return await asyncio.wrap_future(self._loop.submit(self._ask(body)))

    async def _ask(self, body: dict[str, list[Any]]) -> list[Reward]:
        failures = []
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(self._pause_s)
            url = self._urls[next(self._turns) % len(self._urls)]
            try:
                async with asyncio.timeout(self._timeout_s):
                    response = await self._connected().post(url, json=body)
                response.raise_for_status()
                returned = response.json()
            except (httpx.HTTPError, TimeoutError, ValueError) as error:
                reason = (str(error).splitlines() or ["no answer in time"])[0]
                failures.append(f"{url}: {type(error).__name__}: {reason}")
                continue
            return parse_rewards(returned, len(body["query"]), url)
        raise RewardError(f"no reward after {TRIES} tries of up to {self._timeout_s:g} s each: {'; '.join(failures)}")

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=256, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=self._timeout_s, limits=limits, transport=self._transport)
        return self._client
