"""What runs in a Ray actor that hosts environments for a rollout actor, on its node or another."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ...envs.options import EnvPoolOptions
from ...errors import EnvError
from .base import EnvFactory, HostCounts, HostedEnv, Kept, States, Ticket
from .from_options import local_host

Job = Callable[[], Awaitable[Any]]


class EnvWorker:
    """Made as an asynchronous Ray actor; its calls run beside each other on one event loop."""

    def __init__(self, options: EnvPoolOptions) -> None:
        self._host = local_host(options)
        self._is_restored = False
        self._seats: dict[int, _Seat] = {}

    async def ready(self) -> None:
        """Answer, which it can once it lives."""

    async def make(
        self, env_id: int, factory: EnvFactory, family: str, states: States, timeout_s: float, wait_s: float
    ) -> tuple[float, tuple[str, bool]]:
        """Make an environment; return how long that took, its name, and whether it wants queries."""
        if states and not self._is_restored:  # it comes with each environment until one is known to be made
            self._is_restored = True
            self._host.restore(states)
        seat = self._seats[env_id] = _Seat()
        ticket = Ticket(timeout_s, time.monotonic() + wait_s)

        async def job() -> HostedEnv:
            seat.env = await self._host.make(factory, family, ticket)
            return seat.env

        env = await seat.do(job)
        return _seconds(ticket), (env.name, env.wants_query)

    async def call(
        self, env_id: int, method: str, argument: Any, timeout_s: float, wait_s: float
    ) -> tuple[float, object]:
        """Reset or step an environment; return how long that took, without the wait, and what it returned."""
        seat = self._seats[env_id]
        ticket = Ticket(timeout_s, time.monotonic() + wait_s)

        async def job() -> object:
            return await seat.hosted().call(method, argument, ticket)

        result = await seat.do(job)
        return _seconds(ticket), result

    async def fork(self, env_id: int, twin_id: int, timeout_s: float, wait_s: float) -> tuple[float, bool]:
        """Fork an environment that is in no call; return how long that took, and whether it can."""
        original, seat = self._seats[env_id], _Seat()
        self._seats[twin_id] = seat
        ticket = Ticket(timeout_s, time.monotonic() + wait_s)

        async def job() -> None:
            seat.env = await original.hosted().fork(ticket)

        await seat.do(job)
        return _seconds(ticket), seat.env is not None

    async def close_env(self, env_id: int, timeout_s: float) -> HostCounts:
        """Close an environment; return how the worker stands then."""
        seat = self._seats.pop(env_id, None)
        if seat is not None:
            await seat.close(timeout_s)
        return self._host.counts()

    async def states(self, timeout_s: float) -> Kept:
        """Return what the classes of its environments keep, per process."""
        return await self._host.states(timeout_s)


class _Seat:
    """Runs all calls of one environment in one task, which cancel scopes and clients may depend on."""

    def __init__(self) -> None:
        self.env: HostedEnv | None = None
        self._jobs: asyncio.Queue[tuple[Job, asyncio.Future[Any]] | None] = asyncio.Queue()
        self._close_timeout_s = 10.0
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def hosted(self) -> HostedEnv:
        """Return the environment."""
        if self.env is None:
            raise EnvError("this environment is closed, or was never made")
        return self.env

    async def do(self, job: Job) -> Any:  # Any: what the job returns
        """Run a job; if this is cancelled, so is the job, and the environment is closed."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((job, future))
        try:
            return await future
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    async def close(self, timeout_s: float) -> None:
        """Close the environment after the jobs before; raise what that raises."""
        self._close_timeout_s = timeout_s
        self._jobs.put_nowait(None)
        await self._task

    async def _serve(self) -> None:
        try:
            while (item := await self._jobs.get()) is not None:
                await _run(*item)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        env, self.env = self.env, None
        if env is not None:
            await env.close(self._close_timeout_s)


async def _run(job: Job, future: "asyncio.Future[Any]") -> None:
    try:
        result = await job()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


def _seconds(ticket: Ticket) -> float:
    return 0.0 if ticket.began_at is None else time.monotonic() - ticket.began_at
