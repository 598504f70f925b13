"""All rollout actors of a run as the driver sees them: groups go out, trajectories come back, the dead are replaced."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from ..agents.base import Sampling
from ..envs.task import Task
from ..errors import DeadlineError, EngineDeadError
from .buffer import Group
from .ray_calls import call_all, death_of, from_ray
from .trajectory import FailureKind, Trajectory

_POLL_S = 0.2


@dataclass(frozen=True)
class Attempts:
    """A task and the numbers of its attempts."""

    task: Task
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class _Call:
    """What an engine was given: the place in the list of work, and the attempts that are still wanted."""

    engine: int
    place: int
    numbers: tuple[int, ...]


class Fleet:
    """Rollout actors, each with its engine.

    Args:
        make_actor: Makes rollout actor `index` and returns its Ray handle.
        num_engines: How many.
        start_timeout_s: Deadline of an engine's start.
        max_restarts: How often dead engines are replaced, over the whole run.
        say: Where lines for the user go.
        quiet_s: After so long without any result engines are asked whether they live, and have as long to answer.

    Attributes:
        on_restart: Called with the index of a replaced engine, before it gets work: brings it the weights.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Any],  # Any: Ray's handles have no types
        num_engines: int,
        *,
        start_timeout_s: float,
        max_restarts: int,
        say: Callable[[str], None],
        quiet_s: float = 60.0,
    ) -> None:
        self._make_actor = make_actor
        self._start_timeout_s = start_timeout_s
        self._restarts_left = max_restarts
        self._say = say
        self._quiet_s = quiet_s
        self._dead: dict[int, str] = {}  # engines to be replaced, and how each died
        self.on_restart: Callable[[int], None] | None = None
        self.num_restarts = 0
        self._starting: list[Any] = []
        self.actors: list[Any] = [make_actor(index) for index in range(num_engines)]

    def begin_start(self) -> list[Any]:
        """Let all engines start; return the calls, each giving the engine's context length."""
        self._starting = [actor.start.remote() for actor in self.actors]
        return list(self._starting)

    def run(
        self,
        work: Sequence[Attempts],
        sampling: Sampling,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Group]]:
        """Run all work at once; yield each group when it is done, with its place in `work`. Stops early when told to.

        Attempts whose engine dies are run again, on an engine that lives. Work may hold a task more than once.

        Raises:
            EngineDeadError: Engines died more often than they may be replaced.
        """
        waiting = deque((place, attempts.numbers) for place, attempts in enumerate(work))
        running: dict[Any, _Call] = {}
        finished: dict[int, list[Trajectory]] = {place: [] for place in range(len(work))}
        heard_at = time.monotonic()
        while waiting or running:
            # Once the other calls of a dead engine have come back too, with what they had.
            for index in self._dead.keys() - {call.engine for call in running.values()}:
                self._replace(index)
            while waiting and len(self._dead) < len(self.actors):
                place, numbers = waiting.popleft()
                index = self._least_loaded(running)
                handle = self.actors[index].run_group.remote(work[place].task, numbers, sampling)
                running[handle] = _Call(index, place, numbers)
            done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            if should_stop():
                for handle in running:
                    ray.cancel(handle, force=False)
                return
            for handle in done:
                call = running.pop(handle)
                alive = self._result(handle, call.engine)
                finished[call.place] += alive
                if missing := tuple(sorted(set(call.numbers) - {t.attempt for t in alive})):
                    waiting.append((call.place, missing))
                    continue
                whole = sorted(finished.pop(call.place), key=lambda t: t.attempt)
                yield call.place, Group(work[call.place].task, tuple(whole))
            if done:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._quiet_s:
                self._find_silent({call.engine for call in running.values()})
                for handle in [handle for handle, call in running.items() if call.engine in self._dead]:
                    lost = running.pop(handle)
                    waiting.append((lost.place, lost.numbers))
                heard_at = time.monotonic()

    def call(
        self, indices: Sequence[int], method: str, *arguments: object, timeout_s: float, what: str
    ) -> dict[int, Any]:
        """Call a method of these engines and return the results of those that live; `replace_dead` sees to the others.

        Raises:
            DeadlineError: Not all calls ended in time.
            TurnGymError: What a call raised on an engine that lives.
        """
        handles = {
            index: getattr(self.actors[index], method).remote(*arguments)
            for index in indices
            if index not in self._dead
        }
        if not handles:
            return {}
        _, pending = ray.wait(list(handles.values()), num_returns=len(handles), timeout=timeout_s)
        if pending:
            late = [index for index, handle in handles.items() if handle in pending]
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s} s in engine {late[0]}")
        results: dict[int, Any] = {}
        for index, handle in handles.items():
            try:
                results[index] = ray.get(handle)
            except RayError as error:
                if (cause := death_of(error)) is None:
                    raise from_ray(error, what, f"engine {index}") from error
                self._dead[index] = cause
        return results

    def replace_dead(self) -> None:
        """Put a new engine in the place of each dead one, and bring it the current weights.

        Raises:
            EngineDeadError: No replacement is left.
        """
        while self._dead:
            self._replace(next(iter(self._dead)))

    def kill(self) -> None:
        """End all engines at once; requests that run are lost."""
        for actor in self.actors:
            ray.kill(actor, no_restart=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all engines, kindly first; one that still starts would not hear."""
        _, pending = (
            ray.wait(self._starting, num_returns=len(self._starting), timeout=0) if self._starting else ([], [])
        )
        if not pending:
            calls = [actor.close.remote() for actor in self.actors]
            ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        self.kill()

    def _replace(self, index: int) -> None:
        cause = self._dead.pop(index)
        if self._restarts_left <= 0:
            raise EngineDeadError(f"engine {index} died ({cause}) and --vllm.max_restarts are used up")
        self._restarts_left -= 1
        self.num_restarts += 1
        self._say(f"engine {index} died ({cause}); starting another in its place")
        ray.kill(self.actors[index], no_restart=True)
        self.actors[index] = self._make_actor(index)
        call_all([self.actors[index].start.remote()], self._start_timeout_s, f"restarting engine {index}")
        if self.on_restart is not None:
            self.on_restart(index)

    def _least_loaded(self, running: dict[Any, _Call]) -> int:
        load = {index: 0 for index in range(len(self.actors)) if index not in self._dead}
        for call in running.values():
            if call.engine in load:
                load[call.engine] += len(call.numbers)
        return min(load, key=lambda index: load[index])

    def _result(self, handle: Any, engine: int) -> list[Trajectory]:
        """Return the attempts of a call that stand; note the engine as dead if some fell with it."""
        try:
            group: Group = ray.get(handle)
        except RayError as error:
            if (cause := death_of(error)) is None:
                raise from_ray(error, "running episodes", f"engine {engine}") from error
            self._dead[engine] = cause
            return []
        alive: list[Trajectory] = []
        for trajectory in group.trajectories:
            failure = trajectory.failure
            if failure is not None and failure.kind is FailureKind.ENGINE_DEAD:
                self._dead[engine] = failure.message
            else:
                alive.append(trajectory)
        return alive

    def _find_silent(self, engines: set[int]) -> None:
        """Note engines as dead that do not answer any more, or that answer that they hang: neither ends a call."""
        asked = {index: self.actors[index].health.remote() for index in sorted(engines - self._dead.keys())}
        answered, _ = (
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=self._quiet_s) if asked else ([], [])
        )
        for index, handle in asked.items():
            if handle not in answered:
                self._dead[index] = f"it has not answered for {self._quiet_s:.0f} s"
                continue
            try:
                ray.get(handle)
            except RayError as error:
                if (cause := death_of(error)) is None:
                    raise from_ray(error, "asking for health", f"engine {index}") from error
                self._dead[index] = cause
