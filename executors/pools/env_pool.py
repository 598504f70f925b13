"""Where environments run, under deadlines and as many at once as they can bear; one pool serves all episodes."""

import functools
import logging
import math
import time
from collections.abc import Awaitable, Mapping

from ...envs.base import Action
from ...envs.task import Task
from ...errors import ConfigError, EnvError
from .base import EnvFactory, Host, HostedEnv, Kept, States, Ticket, shielded
from .env_classes import EnvClasses, family_of
from .family import Family
from .local import LocalHost
from .on_loop import LoopHost
from .stats import PoolStats
from .threads import ThreadHost

__all__ = ["EnvFactory", "EnvPool", "PooledEnv"]

_log = logging.getLogger(__name__)


class EnvPool:
    """Makes environments and runs their calls, family by family.

    Args:
        num_threads: Most synchronous environments that are in a call at once, where they run in threads. One that
            outlives its deadline is given up, and does not count any more.
        close_timeout_s: Deadline of one `close`, and how long it waits for a running call to end first.
        max_wait_s: How long the calls of an episode may wait for their turn, counted from its beginning; a call may
            always wait as long as it may run.
        max_concurrency: An upper bound for each family's limit; None for none.
        weights: By which families share threads or workers; 1 for those not named.
        host: Where environments live; by default threads and the event loop of this process.
    """

    def __init__(
        self,
        num_threads: int = 32,
        *,
        close_timeout_s: float = 10.0,
        max_wait_s: float = 1800.0,
        max_concurrency: int | None = None,
        weights: Mapping[str, float] | None = None,
        host: Host | None = None,
    ) -> None:
        if max_concurrency is not None and max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, got {max_concurrency}")
        self.close_timeout_s = close_timeout_s
        self.num_close_failures = 0
        self._max_wait_s = max_wait_s
        self._most = math.inf if max_concurrency is None else float(max_concurrency)
        self._classes = EnvClasses()
        self._host = host or _default_host(num_threads, weights or {}, self._classes)
        self._families: dict[str, Family] = {}
        self._is_closed = False

    @property
    def num_abandoned(self) -> int:
        """Calls that were given up at their deadline."""
        return self._host.counts().num_abandoned

    @property
    def num_stuck(self) -> int:
        """Threads that are past their call's deadline and still in it."""
        return self._host.counts().num_stuck

    async def start(self) -> None:
        """Make ready what must be ready before the first environment; without it the first `make` does so.

        Raises:
            ConfigError: Workers cannot be had.
        """
        await self._host.start()

    async def make(self, factory: EnvFactory, timeout_s: float) -> "PooledEnv":
        """Make an environment, when its family may.

        Raises:
            DeadlineError: It took longer than `timeout_s`, not counting the wait.
            EnvUnavailableError: It had to wait too long.
            Exception: Whatever its class raised.
        """
        if self._is_closed:
            raise EnvError("this pool of environments is closed; no episode can begin in it")
        family = self._family(family_of(await self._classes.of(factory), factory))
        waits_until = time.monotonic() + self._max_wait_s
        ticket = _ticket(timeout_s, waits_until)
        hosted = await family.run("make", ticket, functools.partial(self._host.make, factory, family.name, ticket))
        return PooledEnv(self, family, hosted, waits_until)

    def stats(self) -> PoolStats:
        """Say how things stand."""
        families = {name: family.stats() for name, family in self._families.items()}
        return PoolStats(families, self._host.counts(), self.num_close_failures)

    async def state_dict(self, timeout_s: float = 60.0) -> States:
        """Return what classes of environments keep beyond their episodes (`envs.base.Stateful`), per process.

        Where one does not answer or raises, that is logged, and what it said last stands in its place.
        """
        kept = await self.kept(timeout_s)
        for line in kept.complaints:
            _log.warning("%s", line)
        return kept.states

    async def kept(self, timeout_s: float) -> Kept:
        """Return the same, and what there is to complain of, within about the given time."""
        return await self._host.states(timeout_s)

    def load_state_dict(self, states: States) -> None:
        """Take what `state_dict` returned, here or from several pools; classes get it before they are first used."""
        if self._families:
            raise EnvError("states of environments must be loaded before the first environment is made")
        self._host.restore(states)

    def close(self) -> None:
        """Let no further episode begin; those that run end as they do."""
        self._is_closed = True
        self._host.close()

    def _family(self, name: str) -> Family:
        if name not in self._families:
            self._families[name] = Family(name, self._most)
        return self._families[name]


class PooledEnv:
    """One environment of a pool; its calls come one after the other."""

    __slots__ = ("_family", "_hosted", "_is_closed", "_pool", "_waits_until", "name", "wants_query")

    def __init__(self, pool: EnvPool, family: Family, hosted: HostedEnv, waits_until: float) -> None:
        self._pool = pool
        self._family = family
        self._hosted = hosted
        self._waits_until = waits_until
        self._is_closed = False
        self.name = hosted.name
        self.wants_query = hosted.wants_query

    def reset(self, task: Task, timeout_s: float) -> Awaitable[object]:
        """Call `reset` and return what it returned, unchecked."""
        return self._call("reset", task, timeout_s)

    def step(self, action: Action, timeout_s: float) -> Awaitable[object]:
        """Call `step` and return what it returned, unchecked."""
        return self._call("step", action, timeout_s)

    async def fork(self, timeout_s: float) -> "PooledEnv | None":
        """Return a second environment that goes on from here; each is to be closed. None where it cannot fork now.

        Raises:
            ProgramError: The model's own program keeps it from being copied.
            Exception: As `EnvPool.make`.
        """
        ticket = _ticket(timeout_s, self._waits_until)
        hosted = await self._family.run("fork", ticket, functools.partial(self._hosted.fork, ticket))
        return None if hosted is None else PooledEnv(self._pool, self._family, hosted, self._waits_until)

    async def close(self) -> None:
        """Close the environment, the first time; a failure is logged and counted, since the episode is over.

        A call that is still running because its episode was cancelled may end first, for as long as the
        pool's `close_timeout_s`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._hosted.stays_in_task:
            await self._close()
        else:
            await shielded(self._close())

    async def _close(self) -> None:
        try:
            await self._hosted.close(self._pool.close_timeout_s)
        except Exception as error:
            self._pool.num_close_failures += 1
            _log.warning("%s.close failed: %r", self.name, error)

    def _call(self, method: str, argument: Task | Action, timeout_s: float) -> Awaitable[object]:
        ticket = _ticket(timeout_s, self._waits_until)
        return self._family.run(method, ticket, functools.partial(self._hosted.call, method, argument, ticket))


def _ticket(timeout_s: float, waits_until: float) -> Ticket:
    # An episode near its end has tokens that need their reward: its last step may wait, too.
    return Ticket(timeout_s, max(waits_until, time.monotonic() + timeout_s))


def _default_host(num_threads: int, weights: Mapping[str, float], classes: EnvClasses) -> Host:
    loop_host = LoopHost()
    return LocalHost(ThreadHost(num_threads, weights, loop_host), loop_host, classes)
