"""A fleet without Ray: real episodes on an event loop of its own, engines that follow a script and can be ended."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from turngym.agents.base import Completion
from turngym.errors import DeadlineError, EngineDeadError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.retry import Executor, retrying
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.fleet.failover import Failover
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.buffer import Group

WAIT_S = 30.0


class Seat:
    """Where an engine sits; another one may take its place."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.latency_s = 0.0
        self.is_hung = False
        self.load = 0
        self.failover = Failover(self)
        self.failover.revived()

    @property
    def max_context(self) -> int:
        return self.engine.max_context

    @property
    def is_dead(self) -> bool:
        return self.engine._is_dead

    async def generate(self, *arguments: Any) -> Completion:
        await asyncio.sleep(self.latency_s)
        while self.is_hung:
            await asyncio.sleep(0.01)
        return await self.engine.generate(*arguments)


class LocalFleet:
    """What `Rollouts` needs of a fleet, in this process.

    Args:
        make_executor: Makes what runs the episodes; called on the event loop.
        make_engine: Makes an engine, also to take the place of a dead one.
        num_engines: How many.
        max_restarts: How many dead engines are replaced; at once, with the published version.
        max_retries: Of an attempt.
    """

    def __init__(
        self,
        make_executor: Callable[[], Executor],
        make_engine: Callable[[], ScriptedEngine],
        num_engines: int = 1,
        *,
        max_restarts: int = 0,
        max_retries: int = 0,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._make_engine, self._restarts_left, self._max_retries = make_engine, max_restarts, max_retries
        self._came: queue.Queue[Outcome | BaseException] = queue.Queue()
        self._running: dict[int, Future[Outcome]] = {}
        self._num_orders = 0
        self.num_submitted = 0
        self.version = 0
        self.executor, self.seats = self.on_loop(self._made(make_executor, num_engines))
        for seat in self.seats:
            seat.failover.peers = [other.failover.answer for other in self.seats if other is not seat]

    @property
    def num_running(self) -> int:
        """Requests that engines hold, and orders that run; a cancelled one until its end."""
        return sum(seat.engine.num_running for seat in self.seats) + self._num_orders

    def on_loop(self, coroutine: Any) -> Any:
        """Run a coroutine where the episodes run."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def submit(self, order: Order) -> bool:
        live = [seat for seat in self.seats if not seat.is_dead]
        if not live:
            return False
        seat = min(live, key=lambda seat: seat.load)
        seat.load += 1
        self.num_submitted += 1
        future = asyncio.run_coroutine_threadsafe(self._run(order, seat), self._loop)
        self._running[order.key] = future
        future.add_done_callback(lambda future: self._ended(order, seat, future))
        return True

    def poll(self, timeout_s: float) -> list[Outcome]:
        self._see_to_the_dead()
        came: list[Outcome | BaseException] = []
        try:
            came.append(self._came.get(timeout=timeout_s))
            while True:
                came.append(self._came.get_nowait())
        except queue.Empty:
            pass
        for error in came:
            if isinstance(error, BaseException):
                raise error
        return [outcome for outcome in came if isinstance(outcome, Outcome)]

    def cancel(self, keys: Sequence[int]) -> None:
        for key in keys:
            if (future := self._running.get(key)) is not None:
                future.cancel()

    def kill(self, index: int) -> None:
        """End an engine: what it runs fails at once."""
        self._loop.call_soon_threadsafe(self.seats[index].engine.kill)

    def publish(self, version: int) -> None:
        """Have all engines that live sample under this version from now on."""
        self.version = version
        self.on_loop(self._publish(version))

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        for _ in range(int(WAIT_S / 0.01)):
            if holds():
                return
            threading.Event().wait(0.01)
        raise DeadlineError(f"{what} did not come about within {WAIT_S:g} s")

    def close(self) -> None:
        """Cancel what runs and end the loop."""
        self.cancel(list(self._running))
        self.on_loop(self._end_of_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    async def _end_of_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, left = await asyncio.wait(others, timeout=WAIT_S / 2)
            assert not left, f"these go on after they were cancelled: {left}"

    async def _made(self, make_executor: Callable[[], Executor], num_engines: int) -> tuple[Executor, list[Seat]]:
        return make_executor(), [Seat(self._make_engine()) for _ in range(num_engines)]

    async def _run(self, order: Order, seat: Seat) -> Outcome:
        runs = [
            retrying(
                self.executor,
                order.task,
                number,
                seat.failover,
                order.sampling,
                max_retries=self._max_retries,
                backoff_s=0.01,
            )
            for number in order.numbers
        ]
        self._num_orders += 1
        try:
            group = Group(order.task, tuple(await asyncio.gather(*runs)))
        finally:
            self._num_orders -= 1
        kept = tuple(t for t in group.trajectories if not t.failure or t.failure.kind is not FailureKind.ENGINE_DEAD)
        return Outcome(order, kept, tuple(sorted(set(order.numbers) - {t.attempt for t in kept})))

    def _ended(self, order: Order, seat: Seat, future: Future[Outcome]) -> None:
        seat.load -= 1
        del self._running[order.key]
        if not future.cancelled():
            self._came.put(future.exception() or future.result())

    def _see_to_the_dead(self) -> None:
        for seat in self.seats:
            if seat.is_dead and self._restarts_left:
                self._restarts_left -= 1
                self.on_loop(self._replace(seat))
        if all(seat.is_dead for seat in self.seats):
            raise EngineDeadError("no engine lives any more")

    async def _replace(self, seat: Seat) -> None:
        engine = self._make_engine()
        await _update([engine], self.version)
        seat.engine = engine
        seat.failover.revived()

    async def _publish(self, version: int) -> None:
        await _update([seat.engine for seat in self.seats if not seat.is_dead], version)


async def _update(engines: Iterable[ScriptedEngine], version: int) -> None:
    for engine in engines:
        await engine.pause()
        await engine.begin_update()
        await engine.finish_update(version)
        await engine.resume()


def says(text: str) -> Callable[[], ScriptedEngine]:
    """Make engines that always say the same."""
    return lambda: ScriptedEngine(lambda request: np.frombuffer(text.encode(), np.uint8).tolist())
