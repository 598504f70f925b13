"""All rollout actors of a run as the driver sees them: orders go out, attempts come back, the dead are replaced."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from ...errors import DeadlineError, EngineDeadError
from .fleet_engine import Burst, EngineRef, EngineState, Order, Outcome, Status, introduce, outcome_of
from .ray_calls import answers, death_of, first_line, from_ray
from .restarts import Restarts, lost_outcomes, see_to_start, why_silent

ASK_EVERY_S = 5.0


class Fleet:
    """Rollout actors, each with its engine. One thread submits and polls; another may `call` meanwhile.

    An engine that dies is started anew: within its actor, whose episodes live on, or in a new one if that is gone too.
    It then has no current weights; who brings them says so by `equip`.

    Args:
        make_actor: Makes rollout actor `index` and returns its Ray handle.
        num_engines: How many.
        start_timeout_s: Deadline of an engine's start.
        max_restarts: How often dead engines are replaced, over the whole run.
        say: Where lines for the user go.
        quiet_s: Deadline of a health check; an actor that does not answer in time counts as dead.
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
        self._restarts = Restarts(max_restarts)
        self._say = say
        self._quiet_s = quiet_s
        self._lock = threading.RLock()
        self._running: dict[Any, tuple[Order, EngineState]] = {}
        self._num_bursts = 0
        self._last_death = ""
        self._engines = [EngineState(index, make_actor(index)) for index in range(num_engines)]

    @property
    def num_restarts(self) -> int:
        """How often engines were started anew."""
        return self._restarts.num_taken

    @property
    def bare(self) -> list[EngineRef]:
        """Engines that are started and wait for the current weights."""
        with self._lock:
            return [engine.ref for engine in self._engines if engine.status is Status.BARE]

    @property
    def started(self) -> list[EngineRef]:
        """Engines that can be called."""
        with self._lock:
            return [engine.ref for engine in self._engines if engine.is_started]

    @property
    def running(self) -> list[tuple[Order, EngineRef]]:
        """Orders that run, or whose outcome is still to be polled, and where."""
        with self._lock:
            return [(order, engine.ref) for order, engine in self._running.values()]

    def begin_start(self) -> list[Any]:
        """Let all engines start; return the calls, each giving the engine's context length."""
        for engine in self._engines:
            engine.start = engine.actor.start.remote()
        introduce(self._engines)
        return [engine.start for engine in self._engines]

    def submit(self, order: Order) -> bool:
        """Give an order to the least loaded engine that lives; return whether there is one."""
        with self._lock:
            engine = self._place(order)
            if engine is not None:
                self._send(order, engine, turns=order.turns)
            return engine is not None

    def submit_burst(self, orders: Sequence[Order]) -> bool:
        """Give orders to engines that each know how many attempts come; return whether an engine lives."""
        with self._lock:
            places = [engine for order in orders if (engine := self._place(order)) is not None]
            if not places:
                return False
            self._num_bursts += 1
            counts: Counter[int] = Counter()
            for order, engine in zip(orders, places, strict=True):
                counts[engine.index] += len(order.numbers)
            for order, engine in zip(orders, places, strict=True):
                self._send(order, engine, burst=Burst(self._num_bursts, counts[engine.index]))
            return True

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Wait until something happens, at most so long; see to dead engines, and return what came of orders.

        Raises:
            EngineDeadError: No engine lives and none can be started; what came of orders was returned before.
            TurnGymError: An order failed in a way that is no failure of an attempt.
        """
        with self._lock:
            watched = [*self._running, *(e.start for e in self._engines if e.status is Status.STARTING)]
        if watched:
            ray.wait(watched, num_returns=1, timeout=timeout_s)
        else:
            time.sleep(timeout_s)
        with self._lock:
            handles = list(self._running)
            done, _ = ray.wait(handles, num_returns=len(handles), timeout=0) if handles else ([], [])
            outcomes = [self._outcome(handle) for handle in done]
            for engine in self._engines:
                self._ask_health(engine)
                self._see_to_start(engine)
                if engine.status is Status.DEAD:
                    outcomes += self._restart(engine)
            if not outcomes and all(engine.status is Status.GONE for engine in self._engines):
                raise EngineDeadError(
                    f"no engine lives any more, and --vllm.max_restarts are used up; {self._last_death}"
                )
            return outcomes

    def cancel(self, keys: Iterable[int]) -> None:
        """End orders; nothing comes of them, and what their episodes hold is freed."""
        wanted = set(keys)
        with self._lock:
            for handle in [handle for handle, (order, _) in self._running.items() if order.key in wanted]:
                order, engine = self._running.pop(handle)
                engine.load -= len(order.numbers)
                ray.cancel(handle, force=False)

    def call(
        self, engines: Sequence[EngineRef], method: str, *arguments: object, timeout_s: float, what: str
    ) -> dict[EngineRef, Any]:
        """Call a method of these engines and return the results of those that live; others are started anew.

        Args:
            engines: As `started` gave them; those that were replaced since are passed over.
            method: Of the rollout actor.
            arguments: Its arguments.
            timeout_s: Deadline; an engine that is late counts as dead.
            what: What is done, for messages.

        Raises:
            DeadlineError: No engine answered in time, and none is left that can be called or started anew.
            TurnGymError: What a call raised on an engine that lives.
        """
        with self._lock:
            asked = {e.ref: e for e in self._engines if e.is_started and e.ref in engines}
            handles = {ref: getattr(engine.actor, method).remote(*arguments) for ref, engine in asked.items()}
        if not handles:
            return {}
        _, pending = ray.wait(list(handles.values()), num_returns=len(handles), timeout=timeout_s)
        late = [ref for ref, handle in handles.items() if handle in pending]
        results: dict[EngineRef, Any] = {}
        for ref in late:
            cause = f"{what} took longer than its deadline of {timeout_s:g} s"
            self._died(asked[ref], cause, has_process=False, life=ref)
        if len(late) == len(handles) and not self._can_go_on:
            names = ", ".join(str(ref.index) for ref in late)
            raise DeadlineError(f"{what} took longer than its deadline of {timeout_s:g} s in engine {names}")
        for ref in handles.keys() - set(late):
            try:
                results[ref] = ray.get(handles[ref])
            except RayError as error:
                if not self._is_death(error, asked[ref], ref):
                    raise from_ray(error, what, f"engine {ref.index}") from error
        return results

    def ask(self, method: str, *arguments: object, timeout_s: float) -> dict[int, Any]:
        """Call a method of all actors that have had episodes; an error in its place is no death, and none is raised."""
        with self._lock:
            calls = {e.index: getattr(e.actor, method).remote(*arguments) for e in self._engines if e.hosts_envs}
        return answers(calls, timeout_s, "its answer")

    def equip(self, engines: Iterable[EngineRef]) -> None:
        """Take note that these engines have the current weights, and may have work."""
        wanted = set(engines)
        with self._lock:
            for engine in self._engines:
                if engine.status is Status.BARE and engine.ref in wanted:
                    engine.status = Status.LIVE

    def kill(self) -> None:
        """End all engines at once; requests that run are lost."""
        with self._lock:
            for engine in self._engines:
                ray.kill(engine.actor, no_restart=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all engines, kindly first; one that still starts would not hear."""
        starts = [engine.start for engine in self._engines if engine.start is not None]
        _, pending = ray.wait(starts, num_returns=len(starts), timeout=0) if starts else ([], [])
        if not pending:
            calls = [engine.actor.close.remote() for engine in self._engines]
            ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        self.kill()

    def _place(self, order: Order) -> EngineState | None:
        """Choose the least loaded engine that lives, and count the order to its load."""
        live = [engine for engine in self._engines if engine.status is Status.LIVE]
        engine = min(live, key=lambda engine: engine.load, default=None)
        if engine is not None:
            engine.load += len(order.numbers)
        return engine

    def _send(self, order: Order, engine: EngineState, **options: object) -> None:
        given = {name: option for name, option in options.items() if option is not None}
        handle = engine.actor.run_group.remote(order.task, order.numbers, order.sampling, order.branching, **given)
        self._running[handle] = order, engine

    def _outcome(self, handle: Any) -> Outcome:
        """Return what came of an order; attempts that died with an engine are lost."""
        order, engine = self._running.pop(handle)
        engine.load -= len(order.numbers)
        try:
            outcome = outcome_of(order, ray.get(handle).trajectories, engine.index)
        except RayError as error:
            if not self._is_death(error, engine):
                raise from_ray(error, f"an episode of task {order.task.id!r}", f"engine {engine.index}") from error
            return Outcome(order, (), order.numbers)
        if outcome.trajectories:
            engine.num_blocked = 0
        if outcome.lost:
            engine.asked_at = 0.0  # its health is asked for at once
        return outcome

    @property
    def _can_go_on(self) -> bool:
        """Whether an engine can be called now or after a start."""
        with self._lock:
            statuses = {engine.status for engine in self._engines}
        return bool(statuses - {Status.DEAD, Status.GONE}) or (Status.DEAD in statuses and self._restarts.has_any)

    def _is_death(self, error: RayError, engine: EngineState, life: EngineRef | None = None) -> bool:
        """Say whether a call failed because the engine is dead, and take note of it; see `_died`."""
        if (cause := death_of(error)) is None:
            return False
        self._died(engine, cause, has_process=not isinstance(error, RayActorError), life=life)
        return True

    def _died(self, engine: EngineState, cause: str, *, has_process: bool, life: EngineRef | None = None) -> None:
        """Take note of a death, unless it is that of a former life: the engine was started anew since."""
        with self._lock:
            if engine.is_started and life in (None, engine.ref):
                self._last_death = f"engine {engine.index} died: {cause}"
                self._say(self._last_death)
                engine.status, engine.has_process = Status.DEAD, has_process

    def _ask_health(self, engine: EngineState) -> None:
        now = time.monotonic()
        if not engine.is_started:
            engine.question = None
        elif engine.question is None:
            if now - engine.asked_at > ASK_EVERY_S:
                engine.question, engine.asked_at = engine.actor.health.remote(), now
        elif ray.wait([engine.question], timeout=0)[0]:
            try:
                ray.get(engine.question)
            except RayError as error:
                if not self._is_death(error, engine):
                    self._died(engine, f"its health check failed: {first_line(error)}", has_process=False)
            engine.question = None
        elif now - engine.asked_at > self._quiet_s:
            cause, engine.blocking = why_silent(engine.actor, self._quiet_s)
            self._died(engine, cause, has_process=False)

    def _restart(self, engine: EngineState) -> list[Outcome]:
        """Start a dead engine anew; return what was lost with it: nothing where its actor lives."""
        outcomes: list[Outcome] = []
        has_restart = self._restarts.take(engine)
        if not engine.has_process or not has_restart:
            lost = [handle for handle, (_, where) in self._running.items() if where is engine]
            outcomes = lost_outcomes([self._running.pop(handle)[0] for handle in lost], engine.blocking)
            engine.load, engine.blocking = 0, None
            ray.kill(engine.actor, no_restart=True)
        if not has_restart:
            self._say(f"engine {engine.index} is not started again: --vllm.max_restarts are used up")
            engine.status = Status.GONE
            return outcomes
        self._say(f"engine {engine.index} starts anew" + ("" if engine.has_process else ", in a new process"))
        if engine.has_process:
            engine.start = engine.actor.restart.remote()
        else:
            engine.actor = self._make_actor(engine.index)
            engine.start = engine.actor.start.remote()
            introduce(self._engines)
        engine.status, engine.generation = Status.STARTING, engine.generation + 1
        engine.start_until = time.monotonic() + self._start_timeout_s
        return outcomes

    def _see_to_start(self, engine: EngineState) -> None:
        if (why := see_to_start(engine, self._start_timeout_s)) is not None:
            self._last_death = f"engine {engine.index} could not be started: {why}"
            self._say(self._last_death)
            engine.status, engine.has_process = Status.DEAD, False
