"""What a pool of environments asks of the places that host them, and what it knows of an environment's class."""

import asyncio
import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass
from typing import Any, Protocol

from ...envs.base import AsyncEnv, Env

AnyEnv = Env | AsyncEnv
AnyEnvClass = type[Env] | type[AsyncEnv]
EnvFactory = Callable[[], AnyEnv]
States = dict[str, list[Any]]
"""What environments keep beyond their episodes: by family, the state of each process that hosted it."""


@dataclass(frozen=True)
class Kept:
    """What classes of environments keep.

    Attributes:
        states: What they say; for those that cannot be asked, what they said last.
        complaints: A line for each that could not be asked, with the reason.
    """

    states: States
    complaints: tuple[str, ...] = ()


_background: set[asyncio.Future[Any]] = set()


class Ticket:
    """One call on its way: how long it may wait and run, and when it began.

    Attributes:
        timeout_s: How long it may run, from `begin` on.
        began_at: When it stopped waiting; None while it waits.
    """

    __slots__ = ("began_at", "timeout_s", "waits_until")

    def __init__(self, timeout_s: float, waits_until: float) -> None:
        self.timeout_s = timeout_s
        self.waits_until = waits_until
        self.began_at: float | None = None

    def begin(self) -> None:
        """Note that nothing stands between the call and the environment any more."""
        self.began_at = time.monotonic()

    def seconds_left(self) -> float:
        """How much longer it may wait."""
        return max(0.0, self.waits_until - time.monotonic())


@dataclass(frozen=True)
class HostCounts:
    """What a host says of itself."""

    num_envs: int = 0  # that live in it now
    num_workers: int = 0  # processes that live
    num_killed: int = 0  # workers that were killed or died
    num_stuck: int = 0  # calls past their deadline that still hold a thread, or swallow every cancellation
    num_abandoned: int = 0  # calls that were given up at their deadline, ever
    loop_blocked_s: float = 0.0  # how long environments kept an event loop from everything else

    def __add__(self, other: "HostCounts") -> "HostCounts":
        return HostCounts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class HostedEnv(Protocol):
    """One environment where it lives; its calls come one after the other."""

    name: str
    wants_query: bool
    stays_in_task: bool  # all its calls must be made by one task

    def call(self, method: str, argument: Any, ticket: Ticket) -> Awaitable[object]:
        """Reset it with a task, or step it with an action; return what that returned, unchecked.

        Raises:
            DeadlineError: It took longer than the ticket's `timeout_s`.
            EnvUnavailableError: Its worker was not free within the ticket's wait.
            EnvLostError: It went down with its worker.
        """
        ...

    async def fork(self, ticket: Ticket) -> "HostedEnv | None":
        """Return a second environment that goes on from here, in the same place; None where it cannot fork now.

        One that comes too late is closed.

        Raises:
            As `call`.
            ProgramError: The model's own program keeps it from being copied.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Free what it holds, once a call that still runs has ended, or has not within `timeout_s`."""
        ...


class Host(ABC):
    """A place where environments live."""

    async def start(self) -> None:
        """Make ready what must be ready before the first environment; by default nothing.

        Raises:
            ConfigError: It cannot be had.
        """
        return

    @abstractmethod
    async def make(self, factory: EnvFactory, family: str, ticket: Ticket) -> HostedEnv:
        """Make an environment; one that comes too late is closed.

        Raises:
            As `HostedEnv.call`.
        """

    @abstractmethod
    def counts(self) -> HostCounts:
        """Say how things stand."""

    @abstractmethod
    async def states(self, timeout_s: float) -> Kept:
        """Return within about this time what the classes of its environments keep, per process."""

    @abstractmethod
    def restore(self, states: States) -> None:
        """Keep what earlier processes had kept, for the first environments of each family."""

    def close(self) -> None:
        """End what hosts environments as soon as the last of them is closed; by default nothing needs an end."""
        return


async def shielded(work: Awaitable[Any]) -> Any:
    """Await work that goes on if the wait for it is cancelled; what it then raises is lost."""
    return await asyncio.shield(in_background(work))


def in_background(work: Awaitable[Any]) -> "asyncio.Future[Any]":
    """Let work go on by itself; it must have deadlines of its own."""
    task = asyncio.ensure_future(work)
    _background.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: "asyncio.Future[Any]") -> None:
    _background.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as seen


def bound(env: Any, method: str, argument: Any) -> Callable[[], Any]:  # Any: of both kinds of environments
    """Return the call of an environment that resets it with a task, or steps it with an action."""
    if method == "reset":
        return functools.partial(env.reset, seed=argument.seed, options={"task": argument})
    return functools.partial(env.step, argument)


def name_of(factory: object) -> str:
    """Return what a factory is called in messages."""
    factory = unwrapped(factory)
    return getattr(factory, "__name__", None) or str(getattr(factory, "spec", factory))


def known_class(factory: object) -> AnyEnvClass | None:
    """Return the class a factory makes environments of, imported if need be; None where only calling it would tell.

    Args:
        factory: A class, an `envs.factory.EnvFactory`, or anything that can be called.
    """
    made = getattr(factory, "env_class", factory)
    return made if isinstance(made, type) and issubclass(made, Env | AsyncEnv) else None


def unwrapped(factory: object) -> object:
    """Return the factory inside partials."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory
