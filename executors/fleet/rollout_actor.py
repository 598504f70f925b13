"""One engine and its episodes in one process, so that a turn costs no Ray call."""

import functools
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling
from ...agents.chat import agent_for
from ...agents.frameworks.factory import AgentFactory
from ...agents.images import Images, image_reader_of
from ...agents.tokenizer import load_tokenizer
from ...envs.factory import EnvFactory
from ...envs.mixed_tasks import member_of
from ...envs.options import EnvPoolOptions
from ...envs.task import Task
from ...errors import ConfigError
from ..engines.base import UpdateMode
from ..engines.lockstep import Lockstep, Seat
from ..engines.vllm import VllmConfig, VllmEngine
from ..engines.weights import Bucket
from ..episodes.branching import Branching
from ..episodes.limits import Limits
from ..episodes.multi_turn import MultiTurn
from ..episodes.retry import SeedFor, stable_seed
from ..episodes.sides import SeatOf
from ..episodes.tree import run_attempts
from ..own_agents.executor_choice import check_parsers, executor_of
from ..pools.base import Kept, States
from ..pools.env_classes import family_of
from ..pools.from_options import make_pool, parse_weights
from ..pools.gate import FairGate
from ..pools.gated import GatedGenerator
from ..pools.stats import PoolStats
from ..rollouts.buffer import Group
from .block_reports import report_blocking
from .devices import take_devices
from .failover import Failover, LivingWaves
from .fleet_engine import Burst
from .peers import peer
from .stop_tokens import stop_token_ids
from .turn_gate import ScheduledSeat, ScheduledTurns, TurnGate

# Objects made before Python looks for cycles. Thousands of episodes live here at once; going over them again and again,
# at Python's own 700, took even a bare loop over 65,000 of them a fifth of its time.
GC_THRESHOLD = 50_000
TURNS_WAIT_S = 1.0


@dataclass(frozen=True)
class RolloutConfig:
    """What a rollout actor is made with; picklable."""

    engine: VllmConfig
    env: EnvFactory | AgentFactory
    limits: Limits
    env_pool: EnvPoolOptions = field(default_factory=EnvPoolOptions)
    env_states: States = field(default_factory=dict)  # what environments of an actor before this one had kept
    max_retries: int = 2
    determinism_seed: int | None = None  # seed every request by task, attempt and turn
    in_lockstep: bool = True  # with that seed; in waves no update could come between two turns of a schedule
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # Any: what the chat template takes
    tool_parser: str | None = None  # by default what the chat template suggests
    reasoning_parser: str | None = None


class RolloutActor:
    """Made as an asynchronous Ray actor; its calls run beside each other on one event loop."""

    def __init__(self, config: RolloutConfig, *, on_gpu: bool, name: str = "an engine") -> None:
        if on_gpu:
            take_devices(name, count=config.engine.tensor_parallel_size)
        gc.set_threshold(GC_THRESHOLD)
        self._config = config
        tokenizer = load_tokenizer(config.engine.model)
        agent = agent_for(
            tokenizer,
            template_kwargs=config.template_kwargs,
            tool_parser=config.tool_parser,
            reasoning_parser=config.reasoning_parser,
            images=image_reader_of(config.engine.model),
        )
        check_parsers(agent, config.env)
        self._stop_token_ids = stop_token_ids(config.engine.model, agent.end_of_turn_ids)
        self._pool = make_pool(config.env_pool, config.limits.max_seconds)
        self._pool.load_state_dict(config.env_states)
        self._executor = executor_of(config.env, agent, self._pool, config.limits, tokenizer)
        self._engine = VllmEngine(config.engine, on_gpu=on_gpu)
        self._failover = Failover(self._engine)
        self._generator: Generator = self._failover
        self._gate = _gate(config)
        self._members_that_fork = {name for name, member in config.env.members.items() if member.can_fork}
        has_waves = config.determinism_seed is not None and config.in_lockstep
        self._lockstep = Lockstep(LivingWaves(self._engine, self._failover)) if has_waves else None
        self._burst: int | None = None  # the number of the last one
        self._turns = TurnGate()

    async def start(self) -> int:
        """Start the engine, and workers for environments where they are asked for; return the context length."""
        report_blocking()
        await self._pool.start()
        if not isinstance(self._executor, MultiTurn):
            await self._executor.start()
        await self._engine.start()
        if not isinstance(self._executor, MultiTurn):
            await self._executor.check(self._engine)
        return self._engine.max_context

    async def restart(self) -> int:
        """Start a dead or hung engine anew and return its context length.

        Until it has weights, episodes wait or ask others; in lockstep they fail, and are begun again.
        """
        self._failover.lost()
        await self._engine.restart()
        return self._engine.max_context

    async def meet(self, others: Sequence[Any]) -> None:
        """Get to know the other rollout actors, whose engines answer when this one cannot."""
        self._failover.peers = [peer(actor) for actor in others]

    async def answer(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling, images: Images | None, request: str
    ) -> Completion:
        """Sample one completion for another actor's episode; raise `EngineDeadError` if this engine cannot."""
        return await self._failover.answer(prompt_ids, sampling, images, request)

    async def run_group(
        self,
        task: Task,
        attempts: Sequence[int],
        sampling: Sampling,
        branching: Branching | None = None,
        *,
        burst: Burst | None = None,
        turns: ScheduledTurns | None = None,
    ) -> Group:
        """Run the attempts at one task, all at once, on this engine, which has in its cache what branches share.

        Attempts that fail as `engine_dead` are for the caller to run elsewhere.

        Args:
            task: What to do.
            attempts: Their numbers.
            sampling: How to sample.
            branching: Where episodes fork; by default nowhere.
            burst: In lockstep: nothing is sampled before all of it has come, whenever each order comes.
            turns: At which versions to sample, where a schedule is followed.
        """
        stop_token_ids = dict.fromkeys((*sampling.stop_token_ids, *self._stop_token_ids))
        sampling = replace(sampling, stop_token_ids=tuple(stop_token_ids))
        branching = self._branching(task, branching or Branching())
        self._expect(burst)
        with self._seats(task, attempts, branching, turns) as seat_of:
            trajectories = await run_attempts(
                self._executor,
                task,
                attempts,
                seat_of,
                sampling,
                self._seed_for(),
                branching=branching,
                max_retries=self._config.max_retries,
            )
        return Group(task, trajectories)

    async def unfinished_turns(self, version: int, keys: Sequence[int]) -> list[str]:
        """Wait a moment; return which turns of these orders are still to be sampled at `version` or before."""
        return await self._turns.unfinished(version, keys, TURNS_WAIT_S)

    def _expect(self, burst: Burst | None) -> None:
        if self._lockstep is not None and burst is not None and burst.number != self._burst:
            self._burst = burst.number
            self._lockstep.expect(burst.num_attempts)

    def _generator_for(self, task: Task) -> Generator:
        """Return the engine as the family of a task's environment sees it."""
        if self._gate is None or isinstance(self._config.env, AgentFactory):
            return self._generator
        env = self._config.env.for_task(task)
        return GatedGenerator(self._generator, self._gate, family_of(env.env_class, env))

    def _branching(self, task: Task, branching: Branching) -> Branching:
        """Let each attempt be an episode of its own where the task is for a member of a mixture that has no fork."""
        is_of_mixture = bool(self._config.env.members)
        return Branching() if is_of_mixture and member_of(task.id) not in self._members_that_fork else branching

    def _seed_for(self) -> SeedFor | None:
        seed = self._config.determinism_seed
        return None if seed is None else functools.partial(_seed, seed)

    @contextmanager
    def _seats(
        self, task: Task, attempts: Sequence[int], branching: Branching, turns: ScheduledTurns | None
    ) -> Iterator[SeatOf]:
        """Give what each attempt asks for completions."""
        if turns is not None:
            with self._turns.following(turns, attempts):
                yield functools.partial(self._scheduled_seat, task, turns)
        elif self._lockstep is None:
            generator = self._generator_for(task)
            yield lambda attempt: nullcontext(generator)
        else:
            seats = self._lockstep_seats(self._lockstep, attempts, branching)
            try:
                yield seats.__getitem__
            finally:
                for seat in seats.values():
                    seat.leave()  # those whose run a cancellation kept from beginning

    def _scheduled_seat(self, task: Task, turns: ScheduledTurns, attempt: int) -> ScheduledSeat:
        seed_for = self._seed_for()
        if seed_for is None:
            raise ConfigError(
                "only under full determinism can a schedule be followed; give --train.full_determinism_enable"
            )
        turn_of_seed = {seed_for(task.id, attempt, turn): turn for turn in range(len(turns.group.turns[attempt]))}
        return ScheduledSeat(self._turns, self._generator_for(task), turns, attempt, turn_of_seed)

    def _lockstep_seats(self, lockstep: Lockstep, attempts: Sequence[int], branching: Branching) -> dict[int, Seat]:
        """Seat all attempts at once; those that branch off later have theirs again then."""
        seats = {attempt: lockstep.seat() for attempt in attempts}
        for tree in branching.trees(attempts):
            for attempt in tree[1:]:
                seats[attempt].leave()
        return seats

    async def sample(self, prompt_ids: list[int], sampling: Sampling) -> tuple[list[int], list[float]]:
        """Sample one bare completion and return its token ids and logprobs; for checks of the engine."""
        completion = await self._engine.generate(np.asarray(prompt_ids, np.int32), sampling, request="check")
        logprobs = completion.logprobs
        return completion.token_ids.tolist(), [] if logprobs is None else logprobs.tolist()

    async def pool_stats(self) -> PoolStats:
        """Return how the environments' calls stand; `pools.stats.pool_metrics` makes a step's metrics of it."""
        return self._pool.stats()

    async def pool_states(self, timeout_s: float) -> Kept:
        """Return what classes of environments keep beyond their episodes, for a checkpoint."""
        return await self._pool.kept(timeout_s)

    async def load_pool_states(self, states: States) -> None:
        """Take this actor's part of what a checkpoint holds; before the first episode."""
        self._pool.load_state_dict(states)

    async def health(self) -> None:
        """Raise `EngineDeadError` unless the engine answers."""
        await self._engine.health()

    async def begin_update(self, mode: UpdateMode = UpdateMode.DRAIN) -> None:
        """Pause, with running requests as the mode says, and make ready for weights."""
        await self._engine.pause(mode)
        await self._engine.begin_update()

    async def load_bucket(self, bucket: Bucket) -> int:
        """Load one bucket and return the checksum of what arrived."""
        return await self._engine.load_bucket(bucket)

    async def finish_update(self, version: int) -> int:
        """Use the new weights, admit requests again, and return the version now in use."""
        await self._engine.finish_update(version)
        await self._engine.resume()
        self._failover.revived()
        self._turns.publish(version)
        return self._engine.version

    async def use_own_weights(self) -> None:
        """Answer under the weights of the model's folder, where no update will bring others."""
        self._failover.revived()

    async def close(self) -> None:
        """Stop the engine and leave no process behind."""
        await self._engine.close()
        if not isinstance(self._executor, MultiTurn):
            await self._executor.close()
        self._pool.close()


def _gate(config: RolloutConfig) -> FairGate | None:
    """Return a gate for an engine whose time is to be shared by weight; None where it is not.

    It lets twice as many through as are decoded at once, so that the engine always has the next one at hand.
    """
    weights = parse_weights(config.env_pool.weights)
    return FairGate(2 * config.engine.max_num_seqs, weights) if weights else None


def _seed(run_seed: int, task_id: str, attempt: int, turn: int) -> int:
    return stable_seed(task_id, attempt, turn, run_seed)
