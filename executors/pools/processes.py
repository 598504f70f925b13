"""Synchronous environments in worker processes that can be killed.

An environment stays in the worker it was made in. A worker makes one call at a time, in its main thread, where
signals and libraries bound to their thread work. A call that outlives its deadline, takes too much memory or ends its
process takes down the environments of that worker, and no others.
"""

import asyncio
import contextlib
import itertools
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...envs.daemon_threads import DaemonThreads
from ...errors import ConfigError, DeadlineError, EnvError, EnvLostError, EnvUnavailableError, WorkerError
from ...sandbox.fork_server import Forker, Worker
from ...sandbox.worker_main import pack
from .base import EnvFactory, Host, HostCounts, Kept, States, Ticket, in_background, name_of, shielded
from .gate import FairGate
from .states import STATE_TIMEOUT_S, in_time, joined, kept_under, may_keep_state, shared_out

_FUNCTION = "turngym.executors.pools.process_main:call"
_UNLIMITED_BYTES = 1 << 60
_START_TIMEOUT_S = 180.0  # of the first worker: a fresh interpreter imports what all of them need
_REAP_TIMEOUT_S = 60.0
_CLOSE_WAIT_S = 3600.0  # the calls before it have deadlines of their own


@dataclass
class _Slot:
    """A worker process, or the place for one."""

    gate: FairGate
    worker: Worker | None = None
    num_envs: int = 0
    generation: int = 0  # of workers in this slot
    end: str = ""  # how the last worker ended
    kept: States = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)  # of what is kept, the names that this worker has been given
    keepers: set[str] = field(default_factory=set)  # names under which classes in this worker keep something
    answer: "asyncio.Future[tuple[str, ...]] | None" = None  # to the last question what they keep


class ProcessHost(Host):
    """Hosts environments in at most `num_processes` workers, started when first needed.

    Args:
        num_processes: Most workers. An environment goes to the one that hosts the fewest.
        max_memory_gib: Address space a worker may add to what the imports took; None for no limit.
        weights: By which families share a worker's time.
    """

    def __init__(self, num_processes: int, max_memory_gib: float | None, weights: Mapping[str, float]) -> None:
        if num_processes < 1:
            raise ConfigError(f"num_processes must be at least 1, got {num_processes}")
        self._max_memory_gib = max_memory_gib
        memory_bytes = _UNLIMITED_BYTES if max_memory_gib is None else int(max_memory_gib * 2**30)
        self._forker = Forker(_FUNCTION, memory_bytes)
        self._slots = [_Slot(FairGate(1, weights)) for _ in range(num_processes)]
        self._threads = DaemonThreads(num_processes + 1, "turngym-env-worker")
        self._ids = itertools.count()
        self._may_keep: dict[str, bool] = {}
        self._num_killed = 0
        self._is_closed = False

    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> "ProcessEnv":
        """Make an environment in the worker with the fewest."""
        slot = min(self._slots, key=lambda slot: slot.num_envs)
        env = ProcessEnv(self, slot, next(self._ids), family, name_of(factory))
        env.state_name = name = kept_under(factory, family)

        def arguments() -> tuple[object, ...]:
            states = [] if name in slot.restored else slot.kept.get(name, [])
            return env.env_id, factory, name, states

        slot.num_envs += 1
        try:
            env.name, env.wants_query = await self.run(env, "make", arguments, f"making {env.name}", ticket)
        except BaseException:
            in_background(env.close(ticket.timeout_s))  # behind its making, which may still go on
            raise
        if name not in self._may_keep:
            self._may_keep[name] = may_keep_state(factory)
        if self._may_keep[name]:
            slot.keepers.add(name)
        return env

    async def fork(self, env: "ProcessEnv", ticket: Ticket) -> "ProcessEnv | None":
        """Fork an environment inside its worker; None where it cannot."""
        twin = ProcessEnv(self, env.slot, next(self._ids), env.family, env.name, env.generation)
        twin.wants_query = env.wants_query
        arguments = (env.env_id, twin.env_id)
        twin.slot.num_envs += 1
        is_made = False
        try:
            is_made = await self.run(twin, "fork", lambda: arguments, f"{env.name}.fork", ticket)
        finally:
            if not is_made:
                in_background(twin.close(ticket.timeout_s))
        return twin if is_made else None

    def counts(self) -> HostCounts:
        """Say how things stand."""
        return HostCounts(
            num_envs=sum(slot.num_envs for slot in self._slots),
            num_workers=sum(slot.worker is not None for slot in self._slots),
            num_killed=self._num_killed,
        )

    async def states(self, timeout_s: float) -> Kept:
        """Return what the classes of environments keep in each worker; of dead or busy ones, what was last known."""
        asked = [slot for slot in self._slots if slot.worker is not None and slot.keepers]
        for slot in asked:
            if slot.answer is None or slot.answer.done():  # a busy worker is not to be asked twice
                slot.answer = in_background(self._learn(slot))
        asks = [(", ".join(sorted(slot.keepers)), slot.answer) for slot in asked if slot.answer is not None]
        complaints = await in_time(asks, timeout_s)
        return Kept(joined(slot.kept for slot in self._slots), complaints)

    def restore(self, states: States) -> None:
        """Deal out what earlier workers had kept; each gets its part with its first environment of a family."""
        for slot, part in zip(self._slots, shared_out(states, len(self._slots)), strict=True):
            slot.kept = joined([slot.kept, part])

    def close(self) -> None:
        """End the workers once the last environment is closed."""
        self._is_closed = True
        self._end_if_idle()

    async def run(
        self, env: "ProcessEnv", method: str, arguments: Callable[[], tuple[object, ...]], what: str, ticket: Ticket
    ) -> Any:  # Any: what the environment returns
        """Run a call in the environment's worker. If the caller is cancelled, it goes on until its deadline.

        Raises:
            DeadlineError: It took longer than the ticket's `timeout_s`; the worker was killed.
            WorkerError: It ended its worker.
            EnvLostError: Another call ended its worker.
            EnvUnavailableError: The worker was not free within the ticket's wait.
        """
        gate = env.slot.gate
        try:
            entered_at = await gate.enter(env.family, ticket.seconds_left())
        except TimeoutError as error:
            raise EnvUnavailableError(f"{what} had to wait for its worker until its episode's time ran out") from error
        return await shielded(self._run(env, method, arguments, what, ticket, entered_at))

    def leave(self, env: "ProcessEnv") -> None:
        """Forget an environment."""
        env.slot.num_envs -= 1
        self._end_if_idle()

    async def _run(
        self,
        env: "ProcessEnv",
        method: str,
        arguments: Callable[[], tuple[object, ...]],
        what: str,
        ticket: Ticket,
        entered_at: float,
    ) -> Any:
        slot = env.slot
        try:
            if env.generation is None and method == "close":
                return None  # its making never began
            if env.generation is None:
                worker = slot.worker or await self._start(slot)
                env.generation = slot.generation
            elif env.generation == slot.generation and slot.worker is not None:
                worker = slot.worker
            else:
                raise EnvLostError(f"{env.name} was lost with the worker process it shared: {slot.end}")
            ticket.begin()
            result = await self._call(slot, worker, _packed(method, arguments(), what), what, ticket.timeout_s)
            if method == "make":
                slot.restored.add(env.state_name)
            return result
        finally:
            slot.gate.leave(env.family, entered_at)

    async def _learn(self, slot: _Slot) -> tuple[str, ...]:
        """Ask a worker what its classes keep, behind the call that it is in, and return complaints."""
        env = ProcessEnv(self, slot, -1, "", "its class", slot.generation)
        ticket = Ticket(STATE_TIMEOUT_S, time.monotonic() + STATE_TIMEOUT_S)
        found: Kept = await self.run(env, "states", lambda: (), "asking what classes keep", ticket)
        slot.kept |= found.states
        return found.complaints

    async def _start(self, slot: _Slot) -> Worker:
        slot.worker = await self._threads.call(
            self._forker.fork, timeout_s=_START_TIMEOUT_S, what="starting a worker process for environments"
        )
        slot.restored.clear()
        slot.keepers.clear()
        assert slot.worker is not None
        return slot.worker

    async def _call(self, slot: _Slot, worker: Worker, request: bytes, what: str, timeout_s: float) -> Any:
        try:
            kind, content = await self._threads.call(
                worker.call, request, timeout_s, timeout_s=timeout_s + _REAP_TIMEOUT_S, what=what
            )
        except DeadlineError:
            await self._end(slot, worker, f"{what} took longer than its deadline of {timeout_s:g} s")
            raise DeadlineError(f"{slot.end}; its worker process was killed") from None
        except (EOFError, OSError) as error:
            how = await self._end(slot, worker, f"{what} ended it")
            raise WorkerError(f"{what} ended its worker process, which {how}") from error
        if kind == "out of memory":
            await self._end(slot, worker, f"{what} ran out of memory")
            raise WorkerError(
                f"{what} ran out of the {self._max_memory_gib} GiB that --env_pool.max_memory_gib gives its worker"
            )
        if kind == "raised":
            raised, text = content
            raise raised or EnvError(f"{what} raised in its worker process:\n{text}")
        return content

    async def _end(self, slot: _Slot, worker: Worker, reason: str) -> str:
        """Kill a worker; whatever lives in it is lost."""
        slot.worker, slot.end = None, reason
        slot.generation += 1
        self._num_killed += 1
        how: str = await self._threads.call(worker.end, timeout_s=_REAP_TIMEOUT_S, what="killing a worker process")
        return how

    def _end_if_idle(self) -> None:
        if self._is_closed and not any(slot.num_envs for slot in self._slots):
            in_background(self._threads.call(self._forker.close, timeout_s=_REAP_TIMEOUT_S, what="ending the workers"))


class ProcessEnv:
    """An environment in a worker process."""

    stays_in_task = False

    def __init__(
        self, host: ProcessHost, slot: _Slot, env_id: int, family: str, name: str, generation: int | None = None
    ) -> None:
        self._host = host
        self.slot = slot
        self.env_id = env_id
        self.family = family
        self.state_name = family
        self.name = name
        self.wants_query = False
        self.generation = generation  # of its slot's workers; None before it is made

    async def call(self, method: str, argument: Any, ticket: Ticket) -> object:
        """Run `reset` or `step` in the worker."""
        arguments = (self.env_id, method, argument)
        return await self._host.run(self, "call", lambda: arguments, f"{self.name}.{method}", ticket)

    async def fork(self, ticket: Ticket) -> "ProcessEnv | None":
        """Run `fork` in the worker."""
        return await self._host.fork(self, ticket)

    async def close(self, timeout_s: float) -> None:
        """Run `close` in the worker, behind a call that still runs; one that is lost needs none."""
        ticket = Ticket(timeout_s, time.monotonic() + _CLOSE_WAIT_S)
        try:
            with contextlib.suppress(EnvLostError):
                await self._host.run(self, "close", lambda: (self.env_id,), f"{self.name}.close", ticket)
        finally:
            self._host.leave(self)


def _packed(method: str, arguments: tuple[object, ...], what: str) -> bytes:
    try:
        return pack((method, pickle.dumps(arguments)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise EnvError(
            f"{what}: what a worker process needs cannot be pickled ({error}); with --env_pool.backend process "
            "environments, tasks and actions must be made of named classes and plain values"
        ) from error
