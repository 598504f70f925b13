"""A run without models and without Ray: the real loop, rollouts, frontier and checkpoints, a learner that keeps books.

As a program it forks one run for each line of its input (the arguments of `run_once` as JSON), prints its process id,
and when it ended its exit code: so a run can be killed many times at the price of one start.
"""

import json
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from turngym.agents.base import Sampling
from turngym.envs.base import Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import Reply, Request, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.retry import Executor
from turngym.executors.fleet.fleet_engine import EngineRef
from turngym.executors.pools.env_pool import EnvFactory, EnvPool
from turngym.executors.pools.known_states import KnownStates
from turngym.executors.rollouts import rollouts as rollouts_module
from turngym.executors.rollouts.dispatch import RolloutPlan, Taken
from turngym.executors.rollouts.pacing import Pace
from turngym.executors.rollouts.rollouts import Rollouts
from turngym.learner.env_pools import STATES, EnvPools
from turngym.learner.loop_parts import LoopSettings, Parts
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import PolicyOptions
from turngym.learner.losses.value import ValueObjective
from turngym.learner.options import AlgoOptions, KlOptions
from turngym.learner.ranks.roles import Roles
from turngym.learner.ranks.schedule import Schedule
from turngym.learner.rewards.shaping import Shaping
from turngym.learner.run.batch_plan import BatchPlan
from turngym.learner.run.checkpoint import CheckpointFolder
from turngym.learner.run.folder import RunFolder
from turngym.learner.run.interrupt import EXIT_CODE, Interrupt
from turngym.learner.run.progress import Progress
from turngym.learner.run.saving import save
from turngym.learner.run.standing import Standing, go_on, resumed
from turngym.learner.steps.frontier import Frontier

from ..executors.conftest import ByteAgent
from ..executors.local_fleet import LocalFleet

SAMPLING = Sampling(max_tokens=2)
KL = KlOptions(init_coef=0.0)
BAD = "task 5"  # its environment never works


class Coin(Env):
    """Two turns; "A" is worth 1. Now and then a step breaks, that of one task always, and held out never.

    Its class counts the episodes of each task that were begun, over all parts of a run.
    """

    chance = random.Random(0)
    begun: Counter[str] = Counter()
    lock = threading.Lock()

    @classmethod
    def state_dict(cls):
        with cls.lock:
            return dict(cls.begun)

    @classmethod
    def load_state_dict(cls, state):
        with cls.lock:
            cls.begun.update(state)

    def reset(self, *, seed=None, options=None):
        name, self._turn = options["task"].id, 0
        with self.lock:
            self.begun[name] += 1
        self._risk = {BAD: 1.0, "held out": 0.0}.get(name, 0.03)
        return name, {}

    def step(self, action):
        self._turn += 1
        if Coin.chance.random() < self._risk:
            raise OSError("it broke")
        return ".", float(str(action).startswith("A")), self._turn >= 2, False, {}


class Books:
    """In place of weights: the serials that were trained on, and those of the step that is being gathered.

    One number is learned too, by Adam from gradients that hang on the serials and their order; `adam` holds it, its
    moments, and the number of updates.
    """

    def __init__(self) -> None:
        self.trained: list[int] = []
        self.pending: list[int] = []
        self.adam = [0.0, 0.0, 0.0, 0.0]

    def update(self, lr: float) -> None:
        self.trained += self.pending
        weight, mean, square, count = self.adam
        gradient = sum((place + 1) * (serial % 7 - 3) for place, serial in enumerate(self.pending))
        mean, square, count = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2, count + 1
        scale = (square / (1 - 0.99**count)) ** 0.5 + 1e-8
        self.adam = [weight - lr * mean / (1 - 0.9**count) / scale, mean, square, count]


class ToyRollouts(Rollouts):
    """Notes what the learner took."""

    books: Books

    def begin_batch(self, version: int, num_batches_left: int) -> None:
        self.books.pending = []
        super().begin_batch(version, num_batches_left)

    def take(self, *arguments: Any, **words: Any) -> Taken | None:
        taken = super().take(*arguments, **words)
        if taken is not None:
            self.books.pending += [one.draw.serial for one in taken.finished]
        return taken


@dataclass
class ToyRanks:
    """A learner whose weights are its books."""

    books: Books
    is_stopped: Callable[[], bool]
    train_s: float = 0.0
    on_train: Callable[[int], None] = lambda count: None
    on_step: Callable[[], None] = lambda: None
    num_trained: int = 0
    on_save: Callable[[Path], None] = lambda folder: None
    stop: threading.Event = field(default_factory=threading.Event)

    def train(self, part: Any, objective: Any, lr: float, *, may_stop: bool, version: int) -> dict[str, float] | None:
        time.sleep(self.train_s)
        self.on_step()
        if may_stop and (self.stop.is_set() or self.is_stopped()):
            return None
        self.books.update(lr)
        self.num_trained += 1
        self.on_train(self.num_trained)
        return {"policy/lr": lr}

    def request_stop(self) -> None:
        self.stop.set()

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        """In many pieces, as a large model is."""
        with (Path(folder) / tag / "weights.txt").open("w") as file:
            for serial in self.books.trained:
                file.write(f"{serial}\n")
                file.flush()
            time.sleep(self.train_s)
        (Path(folder) / tag / "optimizer.txt").write_text(json.dumps(self.books.adam))
        self.on_save(Path(folder) / tag)

    def load(self, folder: str, tag: str) -> dict[str, Any]:
        self.books.trained = trained(Path(folder) / tag)
        self.books.adam = json.loads((Path(folder) / tag / "optimizer.txt").read_text())
        return {}


class ToyHosts:
    """A run's pool of environments as that of the one rollout actor of a fleet."""

    def __init__(self, fleet: LocalFleet, pool: EnvPool) -> None:
        self._fleet = fleet
        self._pool = pool
        self.started = [EngineRef(0, 0)]

    def call(self, engines: Sequence[EngineRef], method: str, *arguments: Any, **words: Any) -> dict[EngineRef, Any]:
        return {engine: self._fleet.on_loop(getattr(self, method)(*arguments)) for engine in engines}

    def ask(self, method: str, *arguments: Any, timeout_s: float) -> dict[int, Any]:
        return {0: self._fleet.on_loop(getattr(self, method)(*arguments))}

    async def pool_stats(self) -> Any:
        return self._pool.stats()

    async def pool_states(self, timeout_s: float) -> Any:
        return await self._pool.kept(timeout_s)

    async def load_pool_states(self, states: Any) -> None:
        self._pool.load_state_dict(states)


@dataclass
class ToySync:
    fleet: LocalFleet
    version: int = 0

    def bring(self) -> None:
        pass

    def publish(self) -> float:
        self.version += 1
        self.fleet.publish(self.version)
        return 0.0


@dataclass(frozen=True)
class Toy:
    """What a run is made with."""

    folder: Path
    num_tasks: int = 22
    num_passes: int = 2
    batch: int = 4
    pace: Pace = field(default_factory=lambda: Pace(4, batches_ahead=1, max_staleness=2))
    latency_s: float = 0.0
    train_s: float = 0.0
    num_engines: int = 2
    max_restarts: int = 0
    fingerprint: str = "f"
    seed: int = 0
    env: EnvFactory = Coin
    executor: Callable[[], Executor] | None = None  # of these environments, unless it is given
    tasks: Sequence[Task] | None = None
    eval_tasks: Sequence[Task] = (Task(id="held out"),)
    members: tuple[str, ...] = ()
    pool: dict[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=lambda: Limits(max_turns=2))
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


class Running:
    """A run that was made and not begun; it goes on from the newest checkpoint in its folder."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.lines = toy, cast(list[str], [])
        self.books, chance = Books(), random.Random(toy.seed)
        self.pool = EnvPool(4, **toy.pool)
        self.interrupt = Interrupt(self.lines.append)

        def answer(request: Request) -> Reply:
            return Reply([chance.choice((65, 66))], [-0.7], latency_s=toy.latency_s * chance.expovariate(1.0))

        self.fleet = LocalFleet(
            toy.executor or (lambda: MultiTurn(ByteAgent(), toy.env, self.pool, toy.limits)),
            lambda: ScriptedEngine(answer),
            toy.num_engines,
            max_restarts=toy.max_restarts,
            max_retries=1,
        )
        tasks = toy.tasks or [Task(id=f"task {number}") for number in range(toy.num_tasks)]
        self.frontier = Frontier(tasks, toy.num_passes, 0, toy.fingerprint)
        plan = RolloutPlan(**({"numbers": (0, 1, 2, 3), "sampling": SAMPLING, "max_failed_fraction": 0.9} | toy.plan))
        self.rollouts = ToyRollouts(self.fleet, self.frontier, toy.pace, plan)
        self.rollouts.books = self.books
        self.ranks = ToyRanks(self.books, self.interrupt.is_set, toy.train_s)
        self.checkpoints = CheckpointFolder(toy.folder / "checkpoints", 3)
        self.run_folder = RunFolder(toy.folder, resumes=True)
        self.roles = Roles([(("actor",), cast(Any, self.ranks))])
        checkpoint, passed_over = self.checkpoints.newest()
        self.lines += passed_over
        # As a session goes on: without a checkpoint, what an earlier run wrote is forgotten.
        self.standing: Standing = resumed(
            checkpoint, self.roles, self.frontier, self.rollouts, self.run_folder, KL, self.lines.append
        )
        hosts = cast(Any, ToyHosts(self.fleet, self.pool))
        self.pools = EnvPools(hosts, KnownStates(self.lines.append), 30.0, self.lines.append, keeps_state=True)
        if checkpoint is not None:
            self.pools.load(checkpoint.path)
        self.sync = ToySync(self.fleet, 0 if checkpoint is None else int(checkpoint.state["version"]))
        self.fleet.publish(self.sync.version)
        self.progress = Progress(99)
        self.progress.say = self.lines.append  # type: ignore[method-assign]

    @property
    def parts(self) -> Parts:
        return Parts(
            eval_tasks=self.toy.eval_tasks,
            frontier=self.frontier,
            fleet=cast(Any, self.fleet),
            rollouts=self.rollouts,
            roles=self.roles,
            reward_reader=None,
            teacher=None,
            value_objective=ValueObjective(None),
            critic_schedule=Schedule("constant_with_warmup", 10),
            sync=cast(Any, self.sync),
            objective=Objective(
                "ppo", PolicyOptions(), "token-mean", "off", "truncate", (0.0, 2.0), entropy_coef=0.01
            ),  # the entropy has a gradient where all attempts have the same reward
            schedule=Schedule("linear", 99),
            checkpoints=self.checkpoints,
            written_by={},
            folder=self.run_folder,
            progress=self.progress,
            interrupt=self.interrupt,
            pools=self.pools,
            members=self.toy.members,
        )

    @property
    def settings(self) -> LoopSettings:
        numbers: dict[str, Any] = {
            "batches": BatchPlan(self.toy.batch, 4, 1),
            "num_steps": 99,
            "num_epochs": 1,
            "sampling": SAMPLING,
            "eval_sampling": SAMPLING,
            "eval_attempts": 1,
            "eval_every": -1,
            "eval_at_start": False,
            "eval_at_end": False,
            "save_every": 2,
            "algo": AlgoOptions(kl=KL),
            "shaping": Shaping(1.0, None, (-10.0, 10.0), 0.0, 1.0, None, False, 100, 100),
            "peak_lr": 1.0,
            "critic_peak_lr": 1.0,
            "freezing_steps": -1,
            "runs_ahead": self.toy.pace.batches_ahead > 0,
            "max_failed_fraction": 0.9,
            "trajectories_per_step": -1,
        }
        return LoopSettings(**(numbers | self.toy.settings))

    def go(self) -> Standing:
        """Run to the end, or until it is stopped, and save."""
        self.rollouts.start()
        try:
            go_on(self.parts, self.settings, self.standing)
            if self.standing.state.is_interrupted:
                self.rollouts.close()
                self.pools.gather_last()
            save(self.parts, self.standing.state, self.standing.scores)
        finally:
            self.rollouts.close()
            self.fleet.close()
            self.pool.close()
        return self.standing


def trained(checkpoint: Path) -> list[int]:
    """The serials that a checkpoint's weights were trained on."""
    return [int(line) for line in (checkpoint / "weights.txt").read_text().split()]


def begun(checkpoint: Path) -> Counter[str]:
    """How many episodes of each task had begun by a checkpoint, as its environments' state has it."""
    states = pickle.loads((checkpoint / STATES).read_bytes())
    return sum(map(Counter, states.get("Coin", [])), Counter())


def surviving(folder: Path) -> list[int]:
    """The serials of the line of checkpoints that leads to the newest."""
    newest, _ = CheckpointFolder(folder / "checkpoints", 3).newest()
    assert newest is not None
    return trained(newest.path)


def drawn(toy: Toy) -> list[str]:
    """The tasks of all draws, by serial."""
    frontier = Frontier([Task(id=f"task {n}") for n in range(toy.num_tasks)], toy.num_passes, 0, toy.fingerprint)
    return [frontier.named(serial).task.id for serial in range(toy.num_tasks * toy.num_passes)]


def wanted(toy: Toy) -> list[int]:
    """The serials of all draws but those of the task that never works."""
    return [serial for serial, task in enumerate(drawn(toy)) if task != BAD]


def run_once(folder: str, seed: int, save_every: int) -> int:
    """Begin or go on, slowly enough to be killed in between; return the exit code."""
    Coin.chance.seed(seed)
    rollouts_module.POLL_S = 0.005
    toy = Toy(Path(folder), latency_s=0.02, train_s=0.005, seed=seed, settings={"save_every": save_every})
    running = Running(toy)
    with running.interrupt:
        standing = running.go()
    with (toy.folder / "lines.txt").open("a") as file:
        file.write("".join(f"{line}\n" for line in running.lines))
    return EXIT_CODE if standing.state.is_interrupted else 0


def main() -> None:
    Schedule("linear", 99).factor(1)  # imports transformers' schedules, for which no forked run then has to wait
    assert threading.active_count() == 1, "a fork would leave the other threads behind"
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                code = run_once(**json.loads(line))
            except BaseException:  # nobody above is this run's
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(f"began {pid}", flush=True)
        print(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


if __name__ == "__main__":
    main()
