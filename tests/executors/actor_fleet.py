"""A fleet without Ray of real rollout actors, whose engines answer by prompt, seed and version, and take a while."""

import asyncio
import hashlib
import queue
import random
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from turngym.envs.base import AsyncEnv
from turngym.envs.factory import EnvFactory
from turngym.executors.engines.lockstep import Lockstep
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.engines.vllm import VllmConfig
from turngym.executors.episodes.limits import Limits
from turngym.executors.fleet.failover import Failover
from turngym.executors.fleet.fleet_engine import Burst, Order, Outcome
from turngym.executors.fleet.rollout_actor import RolloutActor, RolloutConfig

WAIT_S = 60.0
FIRST_LETTER = 64  # the tiny model's token for "a"


class Wanders(AsyncEnv):
    """One to three turns by the task's number, each after a while; now and then an answer breaks it."""

    async def reset(self, *, seed=None, options=None):
        self._number, self._turn = int(options["task"].id.split()[-1]), 0
        await asyncio.sleep(random.random() * 0.004)
        return options["task"].id, {}

    async def step(self, action):
        self._turn += 1
        await asyncio.sleep(random.random() * 0.008)
        if sum(str(action).encode()) % 16 == 0:
            raise OSError("it broke")
        return ".", float(len(str(action))), self._turn > self._number % 3, False, {}


class Hashing(ScriptedEngine):
    """Answers with a digest of prompt, seed and version, after a random while; keeps what was in each wave."""

    def __init__(self) -> None:
        super().__init__(self._digest, max_context=256)
        self.waves: list[list[str]] = []
        self.salt = b""  # another model has another one

    def _digest(self, request: Any) -> Reply:
        words = request.prompt_ids.tobytes() + f"{request.sampling.seed} {self.version}".encode() + self.salt
        tokens = [FIRST_LETTER + byte % 26 for byte in hashlib.blake2b(words, digest_size=4).digest()]
        return Reply(tokens, [-1.0] * 4, latency_s=random.random() * 0.008)

    async def submit_wave(self, asks):
        self.waves.append([ask.request for ask in asks])
        return await super().submit_wave(asks)


class ActorFleet:
    """What rollouts of each kind need of a fleet."""

    def __init__(self, model: Path, num_engines: int = 2, *, in_lockstep: bool, env_class: type = Wanders) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._came: queue.Queue[Outcome | BaseException] = queue.Queue()
        self._running: dict[int, tuple[Order, int, Future[Outcome]]] = {}
        self._num_bursts = 0
        self.actors: list[RolloutActor] = [
            self.on_loop(_made(model, env_class, in_lockstep=in_lockstep)) for _ in range(num_engines)
        ]
        self.publish(0)

    @property
    def waves(self) -> list[list[list[str]]]:
        """Of each engine."""
        return [actor._engine.waves for actor in self.actors]  # type: ignore[attr-defined]

    @property
    def lives(self) -> bool:
        """Whether any engine has the published weights."""
        return any(actor._failover.lives for actor in self.actors)

    def on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def submit(self, order: Order) -> bool:
        self._send(order, self._least_loaded(Counter()), turns=order.turns)
        return True

    def submit_burst(self, orders: Sequence[Order]) -> bool:
        self._num_bursts += 1
        counts: Counter[int] = Counter()
        places = []
        for order in orders:
            places.append(self._least_loaded(counts))
            counts[places[-1]] += len(order.numbers)
        for order, place in zip(orders, places, strict=True):
            self._send(order, place, burst=Burst(self._num_bursts, counts[place]))
        return True

    def poll(self, timeout_s: float) -> list[Outcome]:
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
            if (entry := self._running.get(key)) is not None:
                entry[2].cancel()

    def unfinished_turns(self, version: int) -> list[str]:
        running = [(order.key, place) for order, place, _ in list(self._running.values()) if order.turns is not None]
        left: list[str] = []
        for place, actor in enumerate(self.actors):
            left += self.on_loop(actor.unfinished_turns(version, [key for key, where in running if where == place]))
        return left

    def publish(self, version: int) -> None:
        for actor in self.actors:
            self.on_loop(_update(actor, version))

    def close(self) -> None:
        self.cancel(list(self._running))
        for actor in self.actors:
            self.on_loop(actor.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    def _least_loaded(self, more: Counter[int]) -> int:
        load = more.copy()
        for order, place, _ in list(self._running.values()):
            load[place] += len(order.numbers)
        return min(range(len(self.actors)), key=lambda place: load[place])

    def _send(self, order: Order, place: int, **options: Any) -> None:
        future = asyncio.run_coroutine_threadsafe(self._run(order, place, options), self._loop)
        self._running[order.key] = order, place, future
        future.add_done_callback(lambda future: self._ended(order, future))

    async def _run(self, order: Order, place: int, options: dict[str, Any]) -> Outcome:
        await asyncio.sleep(random.random() * 0.004)  # calls of an actor overtake each other
        actor = self.actors[place]
        group = await actor.run_group(order.task, order.numbers, order.sampling, order.branching, **options)
        return Outcome(order, group.trajectories)

    def _ended(self, order: Order, future: "Future[Outcome]") -> None:
        del self._running[order.key]
        if not future.cancelled():
            self._came.put(future.exception() or future.result())


async def _made(model: Path, env_class: type, *, in_lockstep: bool) -> RolloutActor:
    config = RolloutConfig(
        VllmConfig(str(model), "float32", max_context=256),
        EnvFactory("wanders", env_class),
        Limits(max_turns=4),
        max_retries=0,
        determinism_seed=7,
        in_lockstep=in_lockstep,
    )
    actor = RolloutActor(config, on_gpu=False)
    engine: Any = Hashing()
    actor._engine = engine
    actor._generator = actor._failover = Failover(engine)
    actor._lockstep = Lockstep(engine) if in_lockstep else None
    return actor


async def _update(actor: RolloutActor, version: int) -> None:
    await actor.begin_update()
    await asyncio.sleep(random.random() * 0.004)
    await actor.finish_update(version)
