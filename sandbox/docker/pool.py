"""Warm containers, and the ledger of all that exist: one is forgotten only when the daemon says that it is gone."""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ...errors import SandboxError
from .container import Container, Shape

_LOG = logging.getLogger(__name__)
_MAX_SHAPES = 3  # with warm containers; the one not asked for longest loses its own
_FIRST_RETRY_S, _LAST_RETRY_S = 0.2, 10.0
_CLOSE_TIMEOUT_S = 20.0


class ContainerPool:
    """Makes containers ahead of need and hands out each of them once.

    Args:
        make: Returns a new container, not started.
        num_warm: How many of a shape wait, ready.
        wanted_programs: What to look for in each.
    """

    def __init__(self, make: Callable[[Shape], Container], num_warm: int, wanted_programs: Sequence[str]) -> None:
        self._make = make
        self._num_warm = num_warm
        self._wanted_programs = wanted_programs
        self._shelves: OrderedDict[Shape, _Shelf] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False
        self.living: dict[str, Container] = {}
        """All containers that may exist, by name."""
        self.unremoved: dict[str, str] = {}
        """Those that the daemon failed to remove, with its last reason; each is tried again until it is gone."""
        self.num_failed_removals = 0

    async def warm_up(self, shape: Shape) -> Container:
        """Return the first container of a shape, for a look at it; it goes on to wait for whoever takes it.

        Raises:
            SandboxError: None could be made.
        """
        container = await self._next(shape, num_spare=0)
        self._put(container)
        self._refill(shape, self._shelf(shape), self._num_warm)
        return container

    async def take(self, shape: Shape) -> Container:
        """Return a container that nobody has used; afterwards it can only be removed.

        Raises:
            SandboxError: None could be made.
        """
        while True:
            container = await self._next(shape, self._num_warm)
            try:
                is_well = await container.ping()
            except asyncio.CancelledError:
                self.remove_later(container)
                raise
            if is_well:
                return container
            self.remove_later(container)

    async def _next(self, shape: Shape, num_spare: int) -> Container:
        if self._is_closed:
            raise SandboxError("the sandbox is closed")
        shelf = self._shelf(shape)
        if shelf.warm:
            container = shelf.warm.popleft()
            self._refill(shape, shelf, num_spare)
            return container
        waiter: asyncio.Future[Container] = asyncio.get_running_loop().create_future()
        shelf.waiters.append(waiter)
        self._refill(shape, shelf, num_spare)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put(waiter.result())  # it came in the same moment
            raise

    def remove_later(self, container: Container) -> asyncio.Task[None]:
        """Kill and remove a container; if the daemon fails to, go on trying in the background.

        The task returned ends with the first attempt.
        """
        container.is_unwanted = True
        if container.name not in self.living:
            return self._start(asyncio.sleep(0))
        if container.name not in self._removals:
            self._removals[container.name] = self._start(self._remove(container))
        return self._removals[container.name]

    async def close(self) -> None:
        """Remove all containers.

        Raises:
            SandboxError: Some could not be removed; the message names them.
        """
        self._is_closed = True
        for shelf in self._shelves.values():
            shelf.fail_waiters(SandboxError("the sandbox is closed"))
        clock = asyncio.get_running_loop()
        deadline = clock.time() + _CLOSE_TIMEOUT_S
        while self.living and clock.time() < deadline:
            for container in list(self.living.values()):
                if container.is_settled:  # the others are still coming up
                    self.remove_later(container)
            await asyncio.wait(self._tasks, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
        left_over = list(self._tasks)
        for task in left_over:
            task.cancel()
        await asyncio.gather(*left_over, return_exceptions=True)
        if self.living:
            reasons = "; ".join(f"{name} ({self.unremoved.get(name, 'no answer')})" for name in self.living)
            raise SandboxError(
                f"{len(self.living)} containers could not be removed: {reasons}; "
                "docker rm --force them, or the next start does"
            )

    async def _remove(self, container: Container) -> None:
        if not await self._try_to_remove(container):
            self._start(self._retry(container))

    async def _retry(self, container: Container) -> None:
        pause_s = _FIRST_RETRY_S
        await asyncio.sleep(pause_s)
        while not await self._try_to_remove(container):
            pause_s = min(2 * pause_s, _LAST_RETRY_S)
            await asyncio.sleep(pause_s)

    async def _try_to_remove(self, container: Container) -> bool:
        try:
            await container.remove()
        except SandboxError as error:
            self.num_failed_removals += 1
            self.unremoved[container.name] = str(error)
            _LOG.warning("container %s could not be removed and is tried again: %s", container.name, error)
            return False
        self.living.pop(container.name, None)
        self.unremoved.pop(container.name, None)
        self._removals.pop(container.name, None)
        return True

    def _shelf(self, shape: Shape) -> "_Shelf":
        shelf = self._shelves.setdefault(shape, _Shelf())
        self._shelves.move_to_end(shape)
        idle = [each for each in self._shelves if not self._shelves[each].is_busy]
        for each in idle[: max(0, len(self._shelves) - _MAX_SHAPES)]:
            if each != shape:
                for container in self._shelves.pop(each).warm:
                    self.remove_later(container)
        return shelf

    def _refill(self, shape: Shape, shelf: "_Shelf", num_spare: int) -> None:
        missing = shelf.num_waiting + num_spare - len(shelf.warm) - shelf.num_making
        for _ in range(missing):
            shelf.num_making += 1
            self._start(self._bring_up(shape, shelf))

    async def _bring_up(self, shape: Shape, shelf: "_Shelf") -> None:
        container = self._make(shape)
        self.living[container.name] = container
        try:
            await container.start(self._wanted_programs)
        except Exception as error:  # whoever waits for it gets it
            if not shelf.fail_one(error):
                _LOG.warning("no container could be made ahead of need: %s", error)
            self.remove_later(container)
        else:
            self._put(container)
        finally:
            shelf.num_making -= 1
            container.is_settled = True

    def _put(self, container: Container) -> None:
        shelf = self._shelves.get(container.shape)
        waiter = shelf.next_waiter() if shelf else None
        if waiter:
            waiter.set_result(container)
        elif shelf and not self._is_closed and len(shelf.warm) < self._num_warm:
            shelf.warm.append(container)
        else:
            self.remove_later(container)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Shelf:
    """Containers of one shape, and who waits for one."""

    def __init__(self) -> None:
        self.warm: deque[Container] = deque()
        self.waiters: deque[asyncio.Future[Container]] = deque()
        self.num_making = 0

    @property
    def num_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self.waiters)

    @property
    def is_busy(self) -> bool:
        return self.num_making > 0 or self.num_waiting > 0

    def next_waiter(self) -> "asyncio.Future[Container] | None":
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                return waiter
        return None

    def fail_one(self, error: Exception) -> bool:
        waiter = self.next_waiter()
        if waiter:
            waiter.set_exception(error)
        return waiter is not None

    def fail_waiters(self, error: Exception) -> None:
        while self.fail_one(error):
            pass
