"""What a run needs of an engine, beyond generating: control, and weights while it lives."""

from typing import Protocol, runtime_checkable

from ...agents.base import Generator
from ..weights import Bucket


@runtime_checkable
class EngineControl(Protocol):
    """Pause, receive weights, resume; every call ends within its deadline or raises."""

    @property
    def version(self) -> int:
        """The published weights in use; 0 are those it was started with."""
        ...

    async def health(self) -> None:
        """Return if requests can be answered.

        Raises:
            EngineDeadError: They cannot; the message says why.
        """
        ...

    async def pause(self) -> None:
        """Let running requests finish, admit no more, and forget cached keys and values."""
        ...

    async def begin_update(self) -> None:
        """Make ready for buckets; the engine must be paused."""
        ...

    async def load_bucket(self, bucket: Bucket) -> int:
        """Load one bucket of weights and return the checksum of the bytes as they arrived."""
        ...

    async def finish_update(self, version: int) -> None:
        """Use the loaded weights from now on, under this version."""
        ...

    async def resume(self) -> None:
        """Admit requests again."""
        ...

    async def close(self) -> None:
        """Stop and leave no process behind; may be called twice."""
        ...


class Engine(Generator, EngineControl, Protocol):
    """Both sides of an engine."""
