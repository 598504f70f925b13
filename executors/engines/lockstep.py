"""Full determinism: the episodes of one engine sample in waves, so that every batch is the same in every run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.images import Images, fingerprint


@dataclass(frozen=True, eq=False)
class Ask:
    """The arguments of one call of `generate`."""

    prompt_ids: NDArray[np.int32]
    sampling: Sampling
    images: Images | None = None
    request: str = ""


class WaveEngine(Generator, Protocol):
    """An engine that can begin many requests at one moment."""

    async def submit_wave(self, asks: Sequence[Ask]) -> list[asyncio.Task[Completion]]:
        """Submit requests in this order, so that none begins before all are there; return once they are.

        Returns:
            One task per request, whose result or error is that of `generate`.

        Raises:
            EngineDeadError: No request can be answered.
        """
        ...


@dataclass(eq=False)
class _Waiting:
    """A request that waits for the others."""

    ask: Ask
    submitted: asyncio.Future[asyncio.Task[Completion]]


class Lockstep:
    """Submits requests in waves: one goes out when every episode that has a seat waits for a completion.

    What an engine computes for a request depends, in the last bits, on the requests beside it. In a wave these are
    the same in every run, however long environments take, and in one order: that of the requests' names.

    Args:
        engine: Asked by nobody else while episodes have seats.
    """

    def __init__(self, engine: WaveEngine) -> None:
        self._engine = engine
        self._seats: set[Seat] = set()
        self._num_expected = 0
        self._sending: set[asyncio.Task[None]] = set()

    def expect(self, num_episodes: int) -> None:
        """Let no wave go out before so many more episodes have taken a seat; forget those that never came."""
        self._num_expected = num_episodes

    def seat(self) -> "Seat":
        """Return an episode's own generator; the others wait for it until it leaves."""
        self._num_expected = max(self._num_expected - 1, 0)
        seat = Seat(self)
        self.add(seat)
        return seat

    def add(self, seat: "Seat") -> None:
        """Wait for this seat, too; nobody had to expect it."""
        self._seats.add(seat)

    @property
    def max_context(self) -> int:
        """The engine's."""
        return self._engine.max_context

    def remove(self, seat: "Seat") -> None:
        """Wait for this seat no longer."""
        self._seats.discard(seat)
        self.consider()

    def consider(self) -> None:
        """Send a wave if nobody is missing."""
        if self._num_expected or not self._seats or not all(seat.waiting for seat in self._seats):
            return
        wave = [waiting for seat in self._seats for waiting in seat.waiting]
        for seat in self._seats:
            seat.waiting.clear()
        wave.sort(key=lambda waiting: (waiting.ask.request, fingerprint(waiting.ask.prompt_ids, waiting.ask.images)))
        task = asyncio.create_task(self._send(wave))
        self._sending.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._sending.discard)

    async def _send(self, wave: list[_Waiting]) -> None:
        try:
            tasks = await self._engine.submit_wave([waiting.ask for waiting in wave])
        except Exception as error:  # whatever it is, it is the answer that all of them get
            for waiting in wave:
                if not waiting.submitted.done():
                    waiting.submitted.set_exception(error)
            return
        for waiting, task in zip(wave, tasks, strict=True):
            if waiting.submitted.done():  # cancelled meanwhile
                task.cancel()
            else:
                waiting.submitted.set_result(task)


@dataclass(eq=False)
class Seat:
    """The generator of one episode; leave it in the end, or the others wait for ever.

    As a context manager it is taken, again if need be, and left.
    """

    _lockstep: Lockstep
    waiting: list[_Waiting] = field(default_factory=list)

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and completion together."""
        return self._lockstep.max_context

    async def generate(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None = None, request: str = ""
    ) -> Completion:
        """Sample one completion in the next wave; see `Generator`."""
        submitted: asyncio.Future[asyncio.Task[Completion]] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(Ask(prompt_ids, sampling, images, request), submitted)
        self.waiting.append(waiting)
        self._lockstep.consider()
        try:
            return await (await submitted)
        except asyncio.CancelledError:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
            if submitted.done() and not submitted.cancelled() and submitted.exception() is None:
                submitted.result().cancel()  # it was submitted in this very moment
            raise

    def __enter__(self) -> "Seat":
        self._lockstep.add(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the others go on without this episode; may be called twice."""
        self._lockstep.remove(self)
