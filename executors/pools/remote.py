"""Environments in Ray actors: other nodes with what they need, or just more cores and another event loop."""

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from ...envs.options import EnvPoolOptions
from ...errors import ConfigError, DeadlineError, EnvLostError, EnvUnavailableError, WorkerError
from ..fleet.ray_calls import first_line, from_ray
from .base import EnvFactory, Host, HostCounts, Kept, States, Ticket, in_background, name_of
from .line import Line
from .remote_slot import Slot, unschedulable
from .remote_worker import EnvWorker
from .states import in_time, joined, kept_under, may_keep_state, shared_out

_log = logging.getLogger(__name__)

_MAX_CALLS = 10_000  # in one worker at once; Ray holds the others back
_CLOSE_WAIT_S = 3600.0  # the calls before it have deadlines of their own
GRACE_S = 10.0  # for the way there and back, and for an answer to the question whether it lives


class RemoteHost(Host):
    """Hosts environments in Ray actors of its own; each environment goes to the one that hosts the fewest.

    Args:
        options: How many workers, what each takes, and how environments live in it.
        resources: What each takes beside cores.
        grace_s: How much longer than its deadline a call may be silent before its worker is asked whether it lives.
    """

    def __init__(self, options: EnvPoolOptions, resources: Mapping[str, float], grace_s: float = GRACE_S) -> None:
        self._options = options
        self._resources = dict(resources)
        self._grace_s = grace_s
        self._slots = [Slot(index) for index in range(options.num_workers)]
        self._restarts_left = options.max_restarts
        self.ids = itertools.count()
        self._num_killed = 0
        self._may_keep: dict[str, bool] = {}
        self._starting: asyncio.Task[None] | None = None
        self._line = Line()  # for a worker that is up
        self._is_closed = False

    async def start(self) -> None:
        """Start all workers.

        Raises:
            ConfigError: One does not start within --env_pool.start_timeout_s.
        """
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start_all())
        await asyncio.shield(self._starting)

    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> "RemoteEnv":
        """Make an environment in the worker with the fewest."""
        await self.start()
        slot = await self._free_slot(ticket)
        env = RemoteEnv(self, slot, next(self.ids), name_of(factory))
        arguments = (env.env_id, factory, family, {} if slot.has_kept else slot.kept)
        env.name, env.wants_query = await self.fill(env, "make", arguments, f"making {env.name}", ticket)
        name = kept_under(factory, family)
        if name not in self._may_keep:
            self._may_keep[name] = may_keep_state(factory)
        if env.generation == slot.generation:
            slot.has_kept = True
            slot.keepers |= {name} if self._may_keep[name] else set()
        return env

    def counts(self) -> HostCounts:
        """Say how things stand; what only workers know is as of the last environment that each closed."""
        known = HostCounts(num_killed=self._num_killed, num_workers=sum(slot.is_up for slot in self._slots))
        for slot in self._slots:
            known += slot.counts
        return replace(known, num_envs=sum(slot.num_envs for slot in self._slots))

    async def states(self, timeout_s: float) -> Kept:
        """Return what the classes of environments keep in each worker; of those that do not answer, what was known."""
        asked = [slot for slot in self._slots if slot.is_up and slot.keepers]
        asks = [(", ".join(sorted(slot.keepers)), self._learn(slot, timeout_s / 2)) for slot in asked]
        complaints = await in_time(asks, timeout_s)
        return Kept(joined(slot.kept for slot in self._slots), complaints)

    def restore(self, states: States) -> None:
        """Deal out what earlier workers had kept; each gets its part with its first environment."""
        for slot, part in zip(self._slots, shared_out(states, len(self._slots)), strict=True):
            slot.kept = joined([slot.kept, part])

    def close(self) -> None:
        """End the workers once the last environment is closed."""
        self._is_closed = True
        self._end_if_idle()

    def leave(self, slot: Slot) -> None:
        """Forget an environment."""
        slot.num_envs -= 1
        self._end_if_idle()

    async def fill(self, env: "RemoteEnv", method: str, arguments: tuple[Any, ...], what: str, ticket: Ticket) -> Any:
        """Have an environment come to be in its worker, by a call that returns something true if it does."""
        env.slot.num_envs += 1
        made = None
        try:
            made = await self.call(env, method, arguments, what, ticket)
        finally:
            if not made:
                in_background(env.close(ticket.timeout_s))
        return made

    async def call(self, env: "RemoteEnv", method: str, arguments: tuple[Any, ...], what: str, ticket: Ticket) -> Any:
        """Run a call in the environment's worker and return what that returns.

        Raises:
            DeadlineError: It took longer than the ticket's `timeout_s`.
            EnvLostError: The worker died.
            Exception: What the environment raised.
        """
        slot = env.slot
        if env.generation != slot.generation or not slot.is_up:
            raise EnvLostError(f"{env.name} was lost with its worker: {slot.end}")
        ticket.begin()
        ref = getattr(slot.actor, method).remote(*arguments, ticket.timeout_s, ticket.seconds_left())
        seconds, result = await self._answer(slot, ref, what, ticket)
        ticket.began_at = time.monotonic() - seconds
        return result

    async def close_env(self, env: "RemoteEnv", timeout_s: float) -> None:
        """Close an environment; one that is lost needs no closing."""
        slot = env.slot
        try:
            if env.generation == slot.generation and slot.is_up:
                ref = slot.actor.close_env.remote(env.env_id, timeout_s)
                ticket = Ticket(2 * timeout_s, time.monotonic() + _CLOSE_WAIT_S)
                slot.counts = await self._answer(slot, ref, f"{env.name}.close", ticket)
        finally:
            self.leave(slot)

    async def _learn(self, slot: Slot, timeout_s: float) -> tuple[str, ...]:
        generation, ticket = slot.generation, Ticket(timeout_s, time.monotonic() + timeout_s)
        found: Kept = await self._answer(slot, slot.actor.states.remote(timeout_s), "asking what classes keep", ticket)
        if generation == slot.generation:
            slot.kept = found.states
        return found.complaints

    async def _answer(self, slot: Slot, ref: Any, what: str, ticket: Ticket) -> Any:
        """Await a call; one that is silent for too long is given up if its worker is, too."""
        future = asyncio.wrap_future(ref.future())
        last_at = ticket.waits_until + ticket.timeout_s + self._grace_s
        try:
            while not (await asyncio.wait([future], timeout=ticket.timeout_s + self._grace_s))[0]:
                if not await self._lives(slot):
                    self._bury(slot, f"it did not answer, and {what} was past its deadline of {ticket.timeout_s:g} s")
                    raise DeadlineError(f"{what} took longer than its deadline of {ticket.timeout_s:g} s; {slot.end}")
                if time.monotonic() > last_at:
                    ray.cancel(ref)
                    raise DeadlineError(f"{what} was not over when its episode's time had run out")
            return future.result()
        except asyncio.CancelledError:
            ray.cancel(ref)
            raise
        except RayActorError as error:
            self._bury(slot, first_line(error))
            raise EnvLostError(f"{what}: its worker died: {first_line(error)}") from error
        except RayTaskError as error:
            if isinstance(cause := error.cause, Exception):
                raise cause from error
            raise WorkerError(f"{what} failed in its worker: {first_line(error)}") from error
        except RayError as error:
            raise from_ray(error, what, "its worker") from error

    async def _lives(self, slot: Slot) -> bool:
        future = asyncio.wrap_future(slot.actor.ready.remote().future())
        return bool((await asyncio.wait([future], timeout=self._grace_s))[0]) and future.exception() is None

    def _bury(self, slot: Slot, how: str) -> None:
        """Note that a worker is dead, see to it that it is, and have another take its place."""
        if not slot.is_up:
            return
        slot.is_up, slot.end, slot.has_kept = False, how, False
        slot.keepers.clear()
        slot.generation += 1
        self._num_killed += 1
        ray.kill(slot.actor, no_restart=True)
        if self._restarts_left <= 0:
            self._give_up(slot, f"{how}; --env_pool.max_restarts are used up")
        elif not self._is_closed:
            self._restarts_left -= 1
            _log.warning("environment worker %d died (%s); starting another in its place", slot.index, how)
            in_background(self._restart(slot))

    def _give_up(self, slot: Slot, why: str) -> None:
        _log.warning("environment worker %d is gone: %s", slot.index, why)
        slot.is_gone, slot.end = True, why
        self._line.admit_all()

    async def _free_slot(self, ticket: Ticket) -> Slot:
        while True:
            up = [slot for slot in self._slots if slot.is_up]
            if up:
                return min(up, key=lambda slot: slot.num_envs)
            if all(slot.is_gone for slot in self._slots):
                ends = "; ".join(slot.end for slot in self._slots)
                raise EnvUnavailableError(f"all {len(self._slots)} environment workers are gone: {ends}")
            try:
                await self._line.wait(ticket.seconds_left(), lambda: None)
            except TimeoutError as error:
                raise EnvUnavailableError("no environment worker was up before the episode's time ran out") from error

    async def _start_all(self) -> None:
        outcomes = await asyncio.gather(*map(self._start, self._slots), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if errors:
            for slot in self._slots:
                if slot.actor is not None:
                    ray.kill(slot.actor, no_restart=True)
            raise errors[0]

    async def _restart(self, slot: Slot) -> None:
        try:
            await self._start(slot)
        except (ConfigError, WorkerError) as error:
            self._give_up(slot, str(error))

    async def _start(self, slot: Slot) -> None:
        remote: Any = ray.remote(EnvWorker)
        slot.actor = remote.options(
            num_cpus=self._options.num_cpus,
            resources=self._resources,
            max_concurrency=_MAX_CALLS,
            scheduling_strategy="SPREAD",
        ).remote(self._options)
        future = asyncio.wrap_future(slot.actor.ready.remote().future())
        done, _ = await asyncio.wait([future], timeout=self._options.start_timeout_s)
        if not done:
            ray.kill(slot.actor, no_restart=True)
            raise ConfigError(unschedulable(slot, self._options, self._resources))
        try:
            future.result()
        except RayError as error:
            raise from_ray(error, f"starting environment worker {slot.index}", "its process") from error
        slot.is_up = True
        self._line.admit_all()

    def _end_if_idle(self) -> None:
        if not self._is_closed or any(slot.num_envs for slot in self._slots):
            return
        for slot in self._slots:
            if slot.is_up:
                slot.is_up = False
                ray.kill(slot.actor, no_restart=True)


class RemoteEnv:
    """An environment in a Ray actor."""

    stays_in_task = False

    def __init__(self, host: RemoteHost, slot: Slot, env_id: int, name: str) -> None:
        self._host = host
        self.slot = slot
        self.generation = slot.generation
        self.env_id = env_id
        self.name = name
        self.wants_query = False

    async def call(self, method: str, argument: Any, ticket: Ticket) -> object:
        """Reset or step it where it lives."""
        arguments = (self.env_id, method, argument)
        return await self._host.call(self, "call", arguments, f"{self.name}.{method}", ticket)

    async def fork(self, ticket: Ticket) -> "RemoteEnv | None":
        """Fork it where it lives."""
        twin = RemoteEnv(self._host, self.slot, next(self._host.ids), self.name)
        twin.generation, twin.wants_query = self.generation, self.wants_query
        made = await self._host.fill(twin, "fork", (self.env_id, twin.env_id), f"{self.name}.fork", ticket)
        return twin if made else None

    async def close(self, timeout_s: float) -> None:
        """Close it where it lives."""
        await self._host.close_env(self, timeout_s)
