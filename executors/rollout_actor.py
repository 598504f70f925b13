"""One engine and its episodes in one process, so that a turn costs no Ray call."""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..agents.base import Sampling
from ..agents.chat import agent_for
from ..agents.tokenizer import load_tokenizer
from ..envs.factory import EnvFactory
from ..envs.task import Task
from .buffer import Group
from .engines.base import UpdateMode
from .engines.lockstep import Lockstep, Seat
from .engines.vllm import VllmConfig, VllmEngine
from .env_pool import EnvPool
from .limits import Limits
from .multi_turn import MultiTurn
from .retry import retrying, stable_seed
from .trajectory import Trajectory
from .weights import Bucket


@dataclass(frozen=True)
class RolloutConfig:
    """What a rollout actor is made with; picklable."""

    engine: VllmConfig
    env: EnvFactory
    limits: Limits
    num_env_threads: int = 32
    max_retries: int = 2
    determinism_seed: int | None = None  # seed every request by task, attempt and turn, and sample in lockstep


class RolloutActor:
    """Made as an asynchronous Ray actor; its calls run beside each other on one event loop."""

    def __init__(self, config: RolloutConfig, *, on_gpu: bool) -> None:
        self._config = config
        tokenizer = load_tokenizer(config.engine.model)
        agent = agent_for(tokenizer)
        self._stop_token_ids = _stop_token_ids(config.engine.model, agent.end_of_turn_ids)
        pool = EnvPool(config.num_env_threads)
        self._executor = MultiTurn(agent, config.env, pool, config.limits)
        self._engine = VllmEngine(config.engine, on_gpu=on_gpu)
        self._lockstep = None if config.determinism_seed is None else Lockstep(self._engine)

    async def start(self) -> int:
        """Start the engine and return its context length."""
        await self._engine.start()
        return self._engine.max_context

    async def expect(self, num_episodes: int) -> None:
        """Under full determinism: sample nothing before so many more episodes have come, whenever each comes."""
        if self._lockstep is not None:
            self._lockstep.expect(num_episodes)

    async def run_group(self, task: Task, attempts: Sequence[int], sampling: Sampling) -> Group:
        """Run the attempts at one task, all at once.

        Attempts that fail as `engine_dead` are for the caller to run elsewhere.
        """
        sampling = _with_stop_ids(sampling, self._stop_token_ids)
        seed = self._config.determinism_seed
        seed_for = None if seed is None else functools.partial(_seed, seed)
        seats = [None if self._lockstep is None else self._lockstep.seat() for _ in attempts]

        async def run(attempt: int, seat: Seat | None) -> Trajectory:
            generator = self._engine if seat is None else seat
            try:
                return await retrying(
                    self._executor,
                    task,
                    attempt,
                    generator,
                    sampling,
                    seed_for,
                    max_retries=self._config.max_retries,
                )
            finally:
                if seat is not None:
                    seat.leave()

        runs = [run(attempt, seat) for attempt, seat in zip(attempts, seats, strict=True)]
        try:
            return Group(task, tuple(await asyncio.gather(*runs)))
        finally:
            for seat in filter(None, seats):
                seat.leave()  # those whose run a cancellation kept from beginning

    async def sample(self, prompt_ids: list[int], sampling: Sampling) -> tuple[list[int], list[float]]:
        """Sample one bare completion and return its token ids and logprobs; for checks of the engine."""
        completion = await self._engine.generate(np.asarray(prompt_ids, np.int32), sampling, request="check")
        logprobs = completion.logprobs
        return completion.token_ids.tolist(), [] if logprobs is None else logprobs.tolist()

    async def health(self) -> None:
        """Raise `EngineDeadError` unless the engine answers."""
        await self._engine.health()

    async def restart(self) -> None:
        """Kill a dead or hung engine and start another, at version 0 of the model's files; it then needs weights."""
        await self._engine.restart()

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
        return self._engine.version

    async def close(self) -> None:
        """Stop the engine and leave no process behind."""
        await self._engine.close()
        self._executor.env_pool.close()


def _seed(run_seed: int, task_id: str, attempt: int, turn: int) -> int:
    return stable_seed(task_id, attempt, turn, run_seed)


def _with_stop_ids(sampling: Sampling, stop_token_ids: tuple[int, ...]) -> Sampling:
    return replace(sampling, stop_token_ids=tuple(dict.fromkeys((*sampling.stop_token_ids, *stop_token_ids))))


def _stop_token_ids(model: str, end_of_turn_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ids that end a completion: the template's first end-of-turn token and the model's own list."""
    from transformers import GenerationConfig

    ids = list(end_of_turn_ids[:1])
    try:
        own = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:  # many folders have none; the engine then knows the tokenizer's
        own = None
    ids += own if isinstance(own, list) else [] if own is None else [own]
    return tuple(dict.fromkeys(ids))
