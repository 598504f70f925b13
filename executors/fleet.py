"""All rollout actors of a run as the driver sees them: groups go out, trajectories come back, the dead are replaced."""

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from ..agents.base import Sampling
from ..envs.task import Task
from ..errors import DeadlineError, EngineDeadError, TurnGymError, WorkerError
from .buffer import Group
from .trajectory import FailureKind, Trajectory

_POLL_S = 0.2


@dataclass(frozen=True)
class Attempts:
    """Work for one engine: a task and the numbers of its attempts."""

    task: Task
    numbers: tuple[int, ...]


class Fleet:
    """Rollout actors, each with its engine.

    Args:
        make_actor: Makes rollout actor `index` and returns its Ray handle.
        num_engines: How many.
        start_timeout_s: Deadline of an engine's start.
        max_restarts: How often dead engines are replaced, over the whole run.
        on_restart: Called with the index of a replaced engine, before it gets work: brings it the weights.
        say: Where lines for the user go.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Any],  # Any: Ray's handles have no types
        num_engines: int,
        *,
        start_timeout_s: float,
        max_restarts: int,
        say: Callable[[str], None],
    ) -> None:
        self._make_actor = make_actor
        self._start_timeout_s = start_timeout_s
        self._restarts_left = max_restarts
        self._say = say
        self.on_restart: Callable[[int], None] | None = None
        self.num_restarts = 0
        self.actors: list[Any] = [make_actor(index) for index in range(num_engines)]

    def begin_start(self) -> list[Any]:
        """Let all engines start; return the calls, each giving the engine's context length."""
        return [actor.start.remote() for actor in self.actors]

    def run(
        self,
        work: Sequence[Attempts],
        sampling: Sampling,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[Group]:
        """Run all work at once and yield each group when it is done; stops early when told to.

        A group whose engine dies is run again, on an engine that lives.

        Raises:
            EngineDeadError: Engines died more often than they may be replaced.
        """
        waiting = deque(work)
        running: dict[Any, tuple[int, Attempts]] = {}
        finished: dict[str, list[Trajectory]] = {}  # of groups that lost some attempts with an engine
        dead: dict[int, str] = {}
        while waiting or running:
            while waiting and len(dead) < len(self.actors):
                attempts = waiting.popleft()
                index = self._least_loaded(running, dead)
                call = self.actors[index].run_group.remote(attempts.task, attempts.numbers, sampling)
                running[call] = (index, attempts)
            done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            if should_stop():
                self._cancel(running)
                return
            for call in done:
                index, attempts = running.pop(call)
                trajectories, cause = _outcome(call)
                finished.setdefault(attempts.task.id, []).extend(trajectories)
                if cause is None:
                    whole = sorted(finished.pop(attempts.task.id), key=lambda t: t.attempt)
                    yield Group(attempts.task, tuple(whole))
                    continue
                got = {t.attempt for t in trajectories}
                waiting.append(Attempts(attempts.task, tuple(n for n in attempts.numbers if n not in got)))
                dead[index] = cause
            # Once the other calls of a dead engine have come back too, with what they had.
            for index in dead.keys() - {index for index, _ in running.values()}:
                self.replace(index, dead.pop(index))

    def replace(self, index: int, cause: str) -> None:
        """Put a new engine in the place of a dead one, and bring it the current weights.

        Raises:
            EngineDeadError: No replacement is left.
        """
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

    def kill(self) -> None:
        """End all engines at once; requests that run are lost."""
        for actor in self.actors:
            ray.kill(actor, no_restart=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all engines, kindly first."""
        calls = [actor.close.remote() for actor in self.actors]
        ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        for actor in self.actors:
            ray.kill(actor, no_restart=True)

    def _least_loaded(self, running: dict[Any, tuple[int, Attempts]], dead: Container[int]) -> int:
        load = {index: 0 for index in range(len(self.actors)) if index not in dead}
        for index, attempts in running.values():
            if index in load:
                load[index] += len(attempts.numbers)
        return min(load, key=lambda index: load[index])

    def _cancel(self, running: dict[Any, tuple[int, Attempts]]) -> None:
        for call in running:
            ray.cancel(call, force=False)


def call_all(calls: Sequence[Any], timeout_s: float, what: str) -> list[Any]:
    """Return the results of Ray calls, or raise within the deadline, naming what was being done.

    Raises:
        DeadlineError: Not all calls ended in time.
        WorkerError: A process died.
        TurnGymError: What a call raised, if it is ours.
    """
    started_at = time.monotonic()
    pending = list(calls)
    try:
        # One at a time, so that the first failure shows at once and not after the slowest call.
        while pending:
            left = timeout_s - (time.monotonic() - started_at)
            done, pending = ray.wait(pending, num_returns=1, timeout=max(left, 0.0))
            if not done:
                raise DeadlineError(f"{what} took longer than its deadline of {timeout_s} s")
            ray.get(done)
        results: list[Any] = ray.get(list(calls))
    except GetTimeoutError as error:
        raise DeadlineError(f"{what} took longer than its deadline of {timeout_s} s") from error
    except (RayActorError, RayTaskError) as error:
        raise from_ray(error) from error
    return results


def from_ray(error: Exception) -> Exception:
    """Return the error that a remote call raised, as ours where it is one of ours."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, TurnGymError):
        return cause
    if isinstance(error, RayActorError):
        return WorkerError(f"a process of the run died: {_first_line(error)}")
    return error


def _outcome(call: Any) -> tuple[list[Trajectory], str | None]:
    """Return the attempts of a call that stand, and how the engine died if it did."""
    try:
        group: Group = ray.get(call)
    except RayActorError as error:
        return [], f"its process ended: {_first_line(error)}"
    except RayTaskError as error:
        raise from_ray(error) from error
    alive: list[Trajectory] = []
    cause: str | None = None
    for trajectory in group.trajectories:
        failure = trajectory.failure
        if failure is not None and failure.kind is FailureKind.ENGINE_DEAD:
            cause = failure.message
        else:
            alive.append(trajectory)
    return alive, cause


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
