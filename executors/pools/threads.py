"""Synchronous environments in threads: cheap, and enough where `step` waits for something; a hang cannot be killed."""

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ...envs.base import AsyncEnv, Env
from ...envs.daemon_threads import DaemonThreads
from ...errors import ConfigError, DeadlineError, EnvError, EnvUnavailableError
from .base import AnyEnv, EnvFactory, Host, HostCounts, HostedEnv, Kept, States, Ticket, bound, name_of
from .gate import FairGate
from .on_loop import LoopHost
from .states import STATE_TIMEOUT_S, OwnStates, in_time, kept_under


class ThreadHost(Host):
    """Runs calls of environments in at most `num_threads` threads.

    Args:
        num_threads: Most calls at once. One that outlives its deadline is given up, and does not count any more.
        weights: By which families share the threads.
        loop_host: Takes in asynchronous environments that only showed up when they were made.
    """

    def __init__(self, num_threads: int, weights: Mapping[str, float], loop_host: LoopHost) -> None:
        if num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, got {num_threads}")
        self._gate = FairGate(num_threads, weights)
        self._threads = DaemonThreads(num_threads, "turngym-env")
        self._loop_host = loop_host
        self._own = OwnStates()
        self._asking = DaemonThreads(4, "turngym-env-state")
        self._abandoned: list[_Call] = []
        self._num_abandoned = 0
        self._num_envs = 0

    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> HostedEnv:
        """Make an environment in a thread."""
        env: AnyEnv = await self._made(factory, f"making {name_of(factory)}", family, ticket)
        self._own.introduce(kept_under(factory, family), type(env))
        if isinstance(env, AsyncEnv):
            return self._loop_host.adopt(env)
        self._num_envs += 1
        return ThreadEnv(self, env, family)

    async def fork(self, env: Env, what: str, family: str, ticket: Ticket) -> "ThreadEnv | None":
        """Fork an environment in a thread; None where it cannot."""
        twin = await self._made(lambda: env.fork() if env.can_fork else None, what, family, ticket)
        if twin is None:
            return None
        self._num_envs += 1
        return ThreadEnv(self, twin, family)

    def counts(self) -> HostCounts:
        """Say how things stand."""
        num_stuck = sum(not call.ended.is_set() for call in self._abandoned)
        return HostCounts(num_envs=self._num_envs, num_stuck=num_stuck, num_abandoned=self._num_abandoned)

    async def states(self, timeout_s: float) -> Kept:
        """Return what the classes of environments keep, asked beside the calls that run."""

        async def learn(family: str) -> tuple[str, ...]:
            what, limit_s = f"{family}.state_dict", max(timeout_s, STATE_TIMEOUT_S)
            complaints: tuple[str, ...] = await self._asking.call(self._own.learn, family, timeout_s=limit_s, what=what)
            return complaints

        complaints = await in_time([(family, learn(family)) for family in self._own.keepers], timeout_s)
        return Kept(self._own.known, complaints)

    def restore(self, states: States) -> None:
        """Keep states for the first environments of their families."""
        self._own.restore(states)

    async def run(self, call: "_Call", what: str, family: str, ticket: Ticket) -> Any:  # Any: what the call returns
        """Run a call in a thread; its time in the queue does not count.

        Raises:
            DeadlineError: It is still running after the ticket's `timeout_s`.
            EnvUnavailableError: No thread was free within the ticket's wait.
        """
        try:
            entered_at = await self._gate.enter(family, ticket.seconds_left())
        except TimeoutError as error:
            raise EnvUnavailableError(f"{what} had to wait for a thread until its episode's time ran out") from error
        try:
            ticket.begin()
            return await self._run(call, what, ticket.timeout_s)
        finally:
            self._gate.leave(family, entered_at)

    async def close_env(self, call: "_Call", what: str, timeout_s: float) -> None:
        """Close an environment, past the queue: it frees what others may wait for."""
        self._num_envs -= 1
        await self._run(call, what, timeout_s)

    async def _made(self, make: Callable[[], AnyEnv | None], what: str, family: str, ticket: Ticket) -> Any:
        call = _Making(make)
        try:
            return await self.run(call, what, family, ticket)
        except BaseException:  # a cancellation too: nobody else knows what the thread will have made
            call.give_up(functools.partial(_close_unwanted, asyncio.get_running_loop()))
            raise

    async def _run(self, call: "_Call", what: str, timeout_s: float) -> Any:
        try:
            return await self._threads.call(call, timeout_s=timeout_s, what=what)
        except DeadlineError:
            if not call.ended.is_set():
                self._num_abandoned += 1
                call.is_abandoned = True
                self._abandoned = [other for other in self._abandoned if not other.ended.is_set()] + [call]
            raise


class ThreadEnv:
    """An environment whose calls come one after the other, perhaps from different threads."""

    stays_in_task = False

    def __init__(self, host: ThreadHost, env: Env, family: str) -> None:
        self._host = host
        self._env = env
        self._family = family
        self._last: _Call | None = None
        self.name = type(env).__name__
        self.wants_query = bool(getattr(env, "wants_query", False))

    async def call(self, method: str, argument: Any, ticket: Ticket) -> object:
        """Run `reset` or `step` in a thread."""
        self._last = _Call(bound(self._env, method, argument))
        return await self._host.run(self._last, f"{self.name}.{method}", self._family, ticket)

    async def fork(self, ticket: Ticket) -> "ThreadEnv | None":
        """Run `fork` in a thread."""
        return await self._host.fork(self._env, f"{self.name}.fork", self._family, ticket)

    async def close(self, timeout_s: float) -> None:
        """Run `close` in a thread, after a call that still runs because its episode was cancelled."""
        call = _Call(functools.partial(self._close_in_order, timeout_s))
        await self._host.close_env(call, f"{self.name}.close", 2 * timeout_s)

    def _close_in_order(self, timeout_s: float) -> None:
        if self._last is not None:
            self._last.let_end(timeout_s)
        self._env.close()


class _Call:
    """A call as its thread sees it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.ended = threading.Event()
        self.is_abandoned = False
        self._function = function
        self._lock = threading.Lock()
        self._has_begun = False
        self._may_begin = True

    def __call__(self) -> Any:
        with self._lock:
            if not self._may_begin:
                raise EnvError("the episode ended before this call began")
            self._has_begun = True
        try:
            return self._function()
        finally:
            self.ended.set()

    def let_end(self, timeout_s: float) -> None:
        """Wait for the call to end, unless it was given up; if it has not begun, it never will."""
        with self._lock:
            self._may_begin = False
            is_running = self._has_begun and not self.is_abandoned
        if is_running:
            self.ended.wait(timeout_s)


class _Making(_Call):
    """The call that makes or forks an environment; it knows what to do with one that comes too late."""

    def __init__(self, make: Callable[[], AnyEnv | None]) -> None:
        super().__init__(make)
        self._made: AnyEnv | None = None
        self._discard: Callable[[AnyEnv], None] | None = None

    def __call__(self) -> AnyEnv | None:
        made: AnyEnv | None = super().__call__()
        with self._lock:
            self._made, discard = made, self._discard
        if made is not None and discard is not None:
            discard(made)
        return made

    def give_up(self, discard: Callable[[AnyEnv], None]) -> None:
        """Have the environment discarded in a thread, whenever it is there."""
        with self._lock:
            self._discard, made = discard, self._made
        if made is not None:
            threading.Thread(target=discard, args=(made,), daemon=True).start()


def _close_unwanted(loop: asyncio.AbstractEventLoop, env: AnyEnv) -> None:
    """Close an environment that was made after its episode had ended."""
    if isinstance(env, AsyncEnv):
        asyncio.run_coroutine_threadsafe(env.close(), loop)
    else:
        env.close()
