"""Asynchronous environments: awaited on the event loop, each by the task of its episode."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ...envs.base import AsyncEnv
from ...errors import DeadlineError, EnvError
from ..deadlines import Deadline
from .base import EnvFactory, Host, HostCounts, States, Ticket, bound, name_of
from .states import OwnStates, kept_under
from .watchdog import Watchdog


class LoopHost(Host):
    """Awaits environments, and watches that none of them blocks the loop."""

    def __init__(self) -> None:
        self._own = OwnStates()
        self._num_envs = 0
        self._watchdog: Watchdog | None = None
        self._blocked_before: dict[str, float] = {}  # of loops that are gone

    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> "LoopEnv":
        """Make an environment on the loop."""
        self._watch()
        ticket.begin()

        async def made() -> Any:
            return factory()

        env = await direct(made, f"making {name_of(factory)}", ticket.timeout_s)
        self._own.introduce(kept_under(factory, family), type(env))
        return self.adopt(env)

    def adopt(self, env: AsyncEnv) -> "LoopEnv":
        """Take in an environment that was made elsewhere."""
        self._watch()
        self._num_envs += 1
        return LoopEnv(env, self)

    @property
    def blocked_s(self) -> dict[str, float]:
        """Seconds that calls blocked the loop, by what they are called."""
        blocked_s = dict(self._blocked_before)
        for what, seconds in () if self._watchdog is None else self._watchdog.blocked_s.items():
            blocked_s[what] = blocked_s.get(what, 0.0) + seconds
        return blocked_s

    def counts(self) -> HostCounts:
        """Say how things stand."""
        return HostCounts(num_envs=self._num_envs, loop_blocked_s=sum(self.blocked_s.values()))

    async def states(self, timeout_s: float) -> States:
        """Return what the classes of environments keep."""
        return self._own.states()

    def restore(self, states: States) -> None:
        """Keep states for the first environments of their families."""
        self._own.restore(states)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._watchdog is None or self._watchdog.loop is not loop:
            self._blocked_before = self.blocked_s
            self._watchdog = Watchdog(loop, direct.__code__)

    def leave(self) -> None:
        """Forget an environment."""
        self._num_envs -= 1
        # Also when the pool is closed: episodes that run end as they do, and are watched until then.
        if not self._num_envs and self._watchdog is not None:
            self._blocked_before = self.blocked_s
            self._watchdog.close()
            self._watchdog = None


class LoopEnv:
    """An environment that its episode's task awaits."""

    __slots__ = ("_env", "_host", "name", "wants_query")
    stays_in_task = True

    def __init__(self, env: AsyncEnv, host: LoopHost) -> None:
        self._env = env
        self._host = host
        self.name = type(env).__name__
        self.wants_query = bool(getattr(env, "wants_query", False))

    def call(self, method: str, argument: Any, ticket: Ticket) -> Awaitable[object]:
        """Await `reset` or `step`; a coroutine less on the way of every turn."""
        ticket.begin()
        return direct(bound(self._env, method, argument), f"{self.name}.{method}", ticket.timeout_s)

    async def fork(self, ticket: Ticket) -> "LoopEnv | None":
        """Await `fork`."""
        if not self._env.can_fork:
            return None
        made: list[AsyncEnv] = []

        async def fork() -> None:
            made.append(await self._env.fork())

        ticket.begin()
        try:
            await direct(fork, f"{self.name}.fork", ticket.timeout_s)
        except BaseException:  # a cancellation too: nobody else knows what has been made
            for twin in made:
                await direct(twin.close, f"{self.name}.close", ticket.timeout_s)
            raise
        return self._host.adopt(made[0])

    async def close(self, timeout_s: float) -> None:
        """Await `close`."""
        try:
            await direct(self._env.close, f"{self.name}.close", timeout_s)
        finally:
            self._host.leave()


async def direct(function: Callable[[], Awaitable[object]], what: str, timeout_s: float) -> Any:
    """Await an environment's coroutine in this task, so that what it opened can be closed by the same task.

    The watchdog finds `what` in this function's frame.
    """
    deadline = Deadline(timeout_s)
    try:
        with deadline:
            outcome = await function()
    except TimeoutError as error:
        if not deadline.has_expired:
            raise
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s") from error
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise EnvError(f"{what} raised CancelledError, and nobody had cancelled it") from error
    except SystemExit as error:
        raise EnvError(f"{what} raised SystemExit: {error}") from error
    if deadline.has_expired:  # it caught the cancellation and went on
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s")
    return outcome
