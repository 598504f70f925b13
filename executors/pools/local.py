"""Hosts environments on this machine: asynchronous ones on the loop, the others in threads or processes."""

from ...envs.base import AsyncEnv
from .base import EnvFactory, Host, HostCounts, HostedEnv, Kept, States, Ticket
from .env_classes import EnvClasses
from .states import joined, kept_under


class LocalHost(Host):
    """Puts each environment where it belongs.

    Args:
        sync_host: Where synchronous environments go.
        loop_host: Where asynchronous ones go.
        classes: Finds out which are which.
    """

    def __init__(self, sync_host: Host, loop_host: Host, classes: EnvClasses) -> None:
        self._sync_host = sync_host
        self._loop_host = loop_host
        self._classes = classes
        self._kept: States = {}  # of families that no environment was made of yet

    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> HostedEnv:
        """Make an environment: on the event loop where it is known to be asynchronous."""
        env_class = await self._classes.of(factory)
        is_async = env_class is not None and issubclass(env_class, AsyncEnv)
        host = self._loop_host if is_async else self._sync_host
        name = kept_under(factory, family)
        if name in self._kept:
            host.restore({name: self._kept.pop(name)})
        return await host.make(factory, family, ticket)

    def counts(self) -> HostCounts:
        """Say how things stand."""
        return self._sync_host.counts() + self._loop_host.counts()

    async def states(self, timeout_s: float) -> Kept:
        """Return what the classes of environments keep, per process."""
        found = [await self._loop_host.states(timeout_s), await self._sync_host.states(timeout_s)]
        complaints = [line for kept in found for line in kept.complaints]
        return Kept(joined([self._kept, *(kept.states for kept in found)]), tuple(complaints))

    def restore(self, states: States) -> None:
        """Keep states for the first environments of their families."""
        self._kept = joined([self._kept, states])

    def close(self) -> None:
        """End what hosts environments as soon as the last of them is closed."""
        self._sync_host.close()
        self._loop_host.close()
