"""The teacher of on-policy distillation: a model in engines of its own that scores what the actor sampled."""

# N tokens of a batch, T of one sequence

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from ..errors import ConfigError, DeadlineError, EngineDeadError
from ..executors.fleet.ray_calls import call_all, death_of, from_ray
from .batch import Batch

_POLL_S = 0.2
MAX_IN_FLIGHT = 64  # sequences with one engine at a time


class Teacher:
    """Scoring engines; one that dies is replaced, and what it had is scored by another.

    Args:
        make_actor: Makes scoring actor `index` and returns its Ray handle.
        num_engines: How many.
        temperature: Of the distribution that the engines score from; what was sampled must have been at the same.
        start_timeout_s: Deadline of an engine's start.
        timeout_s: The longest that no sequence at all may be done.
        max_restarts: How often dead engines are replaced, over the whole run.
        say: Where lines for the user go.
        quiet_s: After so long without any result engines are asked whether they live, and have as long to answer.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Any],  # Any: Ray's handles have no types
        num_engines: int,
        *,
        temperature: float,
        start_timeout_s: float,
        timeout_s: float,
        max_restarts: int,
        say: Callable[[str], None],
        quiet_s: float = 60.0,
    ) -> None:
        self._make_actor = make_actor
        self._temperature = temperature
        self._start_timeout_s = start_timeout_s
        self._timeout_s = timeout_s
        self._restarts_left = max_restarts
        self._say = say
        self._quiet_s = quiet_s
        self._dead: dict[int, str] = {}  # engines to be replaced, and how each died
        self._stop = threading.Event()
        self._starting: list[Any] = []
        self.num_restarts = 0
        self._actors: list[Any] = [make_actor(index) for index in range(num_engines)]

    def begin_start(self) -> list[Any]:
        """Let all engines start; return the calls, each giving the engine's context length."""
        self._starting = [actor.start.remote() for actor in self._actors]
        return list(self._starting)

    def request_stop(self) -> None:
        """End what runs, and all that comes, without a result; any thread may call this."""
        self._stop.set()

    def logprobs(self, batch: Batch) -> NDArray[np.float32] | None:
        """Return the teacher's logprob of each action token, float32 [N], 0 off actions; None when told to stop.

        Raises:
            ConfigError: The batch was sampled at another temperature than the teacher scores at, or holds images.
            DeadlineError: The engines live, and none got a sequence done for too long.
            EngineDeadError: Engines died more often than they may be replaced.
            EngineError: A sequence cannot be scored.
        """
        self._check_temperature(batch)
        if any(batch.images):
            raise ConfigError(
                "a teacher scores text only, and a batch holds images; use an estimator without a teacher"
            )
        logprobs_N = np.zeros(batch.num_tokens, np.float32)
        waiting, running = deque(_longest_first(batch)), dict[Any, tuple[int, int]]()
        done_at = asked_at = time.monotonic()
        while waiting or running:
            if self._stop.is_set():
                self._cancel(running)
                return None
            # Once the other calls of a dead engine have come back too.
            for index in self._dead.keys() - {engine for engine, _ in running.values()}:
                self._replace(index)
                done_at = asked_at = time.monotonic()
            self._hand_out(batch, waiting, running)
            done, _ = ray.wait(list(running), num_returns=len(running), timeout=0)
            if not done:
                done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            for handle in done:
                engine, sequence = running.pop(handle)
                scores_T = self._result(handle, engine)
                if scores_T is None:
                    waiting.appendleft(sequence)
                    continue
                _fill(logprobs_N, batch, sequence, scores_T)
                done_at = asked_at = time.monotonic()
            now = time.monotonic()
            if now - done_at > self._timeout_s:
                self._cancel(running)
                raise DeadlineError(f"the teacher scored no sequence within its deadline of {self._timeout_s} s")
            if now - asked_at > self._quiet_s:
                self._find_silent({engine for engine, _ in running.values()})
                for handle in [handle for handle, (engine, _) in running.items() if engine in self._dead]:
                    waiting.appendleft(running.pop(handle)[1])
                asked_at = time.monotonic()
        return logprobs_N

    def kill(self) -> None:
        """End all engines at once; requests that run are lost."""
        for actor in self._actors:
            ray.kill(actor, no_restart=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all engines, kindly first; one that still starts would not hear."""
        pending: list[Any] = []
        if self._starting:
            _, pending = ray.wait(self._starting, num_returns=len(self._starting), timeout=0)
        if not pending:
            calls = [actor.close.remote() for actor in self._actors]
            ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        self.kill()

    def _check_temperature(self, batch: Batch) -> None:
        strange = batch.temperatures[batch.is_action & ~np.isclose(batch.temperatures, self._temperature)]
        if len(strange):
            raise ConfigError(
                f"{len(strange)} tokens were sampled at temperature {strange[0]:g}, and the teacher scores at "
                f"{self._temperature:g}: the two distributions cannot be compared; sample every turn at one temperature"
            )

    def _hand_out(self, batch: Batch, waiting: deque[int], running: dict[Any, tuple[int, int]]) -> None:
        load = {index: 0 for index in range(len(self._actors)) if index not in self._dead}
        for engine, _ in running.values():
            if engine in load:
                load[engine] += 1
        while waiting and load:
            index = min(load, key=lambda engine: load[engine])
            if load[index] >= MAX_IN_FLIGHT:
                return
            sequence = waiting.popleft()
            handle = self._actors[index].score.remote(_scored_part(batch, sequence), f"teacher/{sequence}")
            running[handle] = (index, sequence)
            load[index] += 1

    def _result(self, handle: Any, engine: int) -> NDArray[np.float32] | None:
        """Return a sequence's scores; note the engine as dead if they fell with it."""
        try:
            scores_T: NDArray[np.float32] = ray.get(handle)
        except RayError as error:
            if (cause := death_of(error)) is None:
                raise from_ray(error, "scoring with the teacher", f"teacher engine {engine}") from error
            self._dead[engine] = cause
            return None
        return scores_T

    def _replace(self, index: int) -> None:
        cause = self._dead.pop(index)
        if self._restarts_left <= 0:
            raise EngineDeadError(f"teacher engine {index} died ({cause}) and --vllm.max_restarts are used up")
        self._restarts_left -= 1
        self.num_restarts += 1
        self._say(f"teacher engine {index} died ({cause}); starting another in its place")
        ray.kill(self._actors[index], no_restart=True)
        self._actors[index] = self._make_actor(index)
        call_all([self._actors[index].start.remote()], self._start_timeout_s, f"restarting teacher engine {index}")

    def _find_silent(self, engines: set[int]) -> None:
        """Note engines as dead that do not answer any more: a process that hangs returns no call and raises nothing."""
        asked = {index: self._actors[index].health.remote() for index in sorted(engines - self._dead.keys())}
        answered: list[Any] = []
        if asked:
            answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=self._quiet_s)
        for index, handle in asked.items():
            if handle not in answered:
                self._dead[index] = f"it has not answered for {self._quiet_s:.0f} s"

    def _cancel(self, running: dict[Any, tuple[int, int]]) -> None:
        for handle in running:
            ray.cancel(handle, force=False)


def _longest_first(batch: Batch) -> list[int]:
    """Return the sequences with something to score, those that take longest first."""
    has_action = np.zeros(batch.num_sequences, bool)
    has_action[batch.sequence_of_token[batch.is_action]] = True
    order: list[int] = np.argsort(-batch.lengths, kind="stable").tolist()
    return [sequence for sequence in order if has_action[sequence]]


def _scored_part(batch: Batch, sequence: int) -> NDArray[np.int32]:
    """Return a sequence's tokens up to its last action; what follows changes no score."""
    first, end = batch.starts[sequence : sequence + 2]
    last_action = int(np.flatnonzero(batch.is_action[first:end])[-1])
    return batch.token_ids[first : first + last_action + 1]


def _fill(logprobs_N: NDArray[np.float32], batch: Batch, sequence: int, scores_T: NDArray[np.float32]) -> None:
    """Put the scores of a sequence's action tokens in their places."""
    first = batch.starts[sequence]
    place = slice(first, first + len(scores_T))
    is_action_T = batch.is_action[place]
    logprobs_N[place][is_action_T] = scores_T[is_action_T]
