"""A line of waiting tasks: first come, first served, each with its own deadline."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext

from ..deadlines import Deadline


class Line:
    """Those who wait for something; whoever hands it out calls `admit`."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # leaving from the middle is O(1)

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, timeout_s: float | None, lost: Callable[[], None]) -> None:
        """Wait to be admitted.

        Args:
            timeout_s: How long at most; None where the caller cancels.
            lost: Takes back what was handed to this one in the moment it stopped waiting.

        Raises:
            TimeoutError: It was not admitted in time.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            with nullcontext() if timeout_s is None else Deadline(timeout_s):
                await future
        except BaseException:
            if self._waiting.pop(future, lost) is lost:
                lost()
            raise

    def admit(self) -> bool:
        """Let the first go on; False where nobody waits."""
        if not self._waiting:
            return False
        future, _ = self._waiting.popitem(last=False)
        if not future.done():  # else its loop was closed, and it is nobody's any more
            future.set_result(None)
        return True

    def admit_all(self) -> None:
        """Let everybody who waits now go on."""
        for _ in range(len(self._waiting)):
            self.admit()
