"""The state of one running episode and its stages; `multi_turn.py` says in which order they come."""

import asyncio
import copy
import math
import time
from dataclasses import replace
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, Generator, Sampling, StopReason
from ...agents.images import Images
from ...agents.sequence import BEFORE_FIRST_TURN, Sequence
from ...envs.base import Action
from ...envs.factory import for_task
from ...envs.messages import Message
from ...envs.task import Task
from ...errors import EngineError, ProgramError, RewardError
from ..deadlines import Deadline
from ..pools.env_pool import EnvFactory, EnvPool, PooledEnv
from .base import Agent, Conversation
from .env_results import Info, StepOutcome, checked_reset, checked_step
from .failures import EpisodeError, Stage, failure_of
from .limits import Limits, TokenBound, token_bound
from .retry import SeedFor
from .trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from .turn_sampling import ending_at_calls, resampled

_NO_SECONDS = dict.fromkeys((stage.value for stage in Stage), 0.0)


class Episode:
    """One attempt while it runs. Stages raise `EpisodeError`; what was gathered by then stays."""

    def __init__(
        self,
        agent: Agent,
        env_pool: EnvPool,
        limits: Limits,
        task: Task,
        attempt: int,
        generator: Generator,
        sampling: Sampling,
        seed_for: SeedFor | None,
    ) -> None:
        self._agent = agent
        self._pool = env_pool
        self._limits = limits
        self._task = task
        self._attempt = attempt
        self._generator = generator
        self._seed_for = seed_for
        turn_tokens = min(sampling.max_tokens, limits.max_turn_tokens or sampling.max_tokens)
        if turn_tokens != sampling.max_tokens or sampling.seed is not None:
            sampling = replace(sampling, max_tokens=turn_tokens, seed=None)
        self._first_sampling = self._sampling = sampling
        self._max_context = min(generator.max_context, limits.max_context or generator.max_context)
        self._started_at = time.monotonic()
        self._turn = BEFORE_FIRST_TURN
        self._env: PooledEnv | None = None
        self._conversation: Conversation | None = None
        self._num_sampled = 0
        self._rewards: tuple[float, ...] = ()
        self._turn_ends: tuple[TurnEnd, ...] = ()
        self._score: float | None = None
        self._extra_logs: dict[str, float] = {}
        self._seconds = dict(_NO_SECONDS)
        self._sequences: tuple[Sequence, ...] = ()
        self._messages: tuple[Message, ...] = ()

    async def begin(self, env_factory: EnvFactory) -> None:
        """Make and reset the environment and show its first observation."""
        timeout_s = self._limits.env_timeout_s
        with _Watch(self, Stage.ENV):
            env_factory, task = for_task(env_factory, self._task)
            self._env = await self._pool.make(env_factory, timeout_s)
            result = checked_reset(await self._env.reset(task, timeout_s), self._env.name)
        self._take(result.info)
        with _Watch(self, Stage.RENDER):
            self._conversation = self._agent.begin(result.tools) if result.tools else self._agent.begin()
            self._first_sampling = ending_at_calls(self._first_sampling, self._conversation, result.after_calls)
            self._conversation.observe(result.observation)
        with _Watch(self, Stage.ENV):
            self._sampling = resampled(self._first_sampling, result.info.sampling)

    @overload
    async def play(self) -> EndReason: ...

    @overload
    async def play(self, until: int) -> EndReason | None: ...

    async def play(self, until: int | None = None) -> EndReason | None:
        """Take turns until the episode ends, or until a turn is over and it goes on: then return None."""
        while until is None or self._turn < until:
            with _Watch(self, Stage.RENDER):
                prompt_ids, images = self._talk().prompt_ids(), self._talk().prompt_images()
            bound = self._bound(len(prompt_ids))
            if bound is None:
                return EndReason.CONTEXT
            if (seconds_left := self._seconds_left()) <= 0:
                return self._out_of_time(FailureKind.ENV_TIMEOUT)
            self._turn += 1
            sampling = self._turn_sampling(bound)
            completion = await self._generate(prompt_ids, images, sampling, seconds_left)
            if completion is None:
                return self._out_of_time(FailureKind.ENGINE_TIMEOUT)
            outcome = await self._step(self._record(completion, sampling, bound))
            end = self._end_after(outcome)
            if end is None or not outcome.is_silent:
                with _Watch(self, Stage.RENDER):
                    self._talk().observe(outcome.observation, is_last=end is not None)
            if end is not None:
                return end
            del completion, outcome  # an episode that waits for its next turn holds nothing of this one
        return None

    async def fork(self, attempt: int, generator: Generator) -> "Episode | None":
        """Return an episode that goes on from here as another attempt, with an environment of its own to be closed.

        None where the environment cannot fork in its present state.

        Raises:
            EpisodeError: The environment could not be forked; this episode is as it was.
        """
        with _Watch(self, Stage.RENDER):
            conversation = self._talk().fork()
        with _Watch(self, Stage.ENV):
            assert self._env is not None
            try:
                env = await self._env.fork(self._limits.env_timeout_s)
            except ProgramError as error:
                raise EpisodeError(Failure(FailureKind.FORK_REFUSED, str(error), self._turn)) from error
        if env is None:
            return None
        twin = copy.copy(self)
        twin._attempt, twin._generator, twin._env, twin._conversation = attempt, generator, env, conversation
        twin._extra_logs, twin._seconds = dict(self._extra_logs), dict(self._seconds)
        return twin

    def finish(self) -> None:
        """Freeze the tokens."""
        with _Watch(self, Stage.RENDER):
            self._gather()

    async def close(self) -> None:
        """Close the environment, if there is one."""
        if self._env is not None:
            started_at = time.perf_counter()
            await self._env.close()
            self._seconds[Stage.ENV] += time.perf_counter() - started_at

    def trajectory(self, end: EndReason, failure: Failure | None) -> Trajectory:
        """Return what was gathered."""
        if failure is not None:
            try:
                self._gather()
            except Exception as error:  # what broke the episode may have broken its conversation too
                failure = replace(failure, message=f"{failure.message}; its tokens are lost: {error!r}")
        return Trajectory(
            task=self._task,
            attempt=self._attempt,
            sequences=self._sequences,
            messages=self._messages,
            rewards_per_turn=np.asarray(self._rewards, np.float64),
            turn_ends=self._turn_ends,
            end_reason=end,
            failure=failure,
            score=self._score,
            extra_logs=self._extra_logs,
            seconds=self._seconds | {"total": time.monotonic() - self._started_at},
        )

    def _talk(self) -> Conversation:
        assert self._conversation is not None  # `begin` comes first
        return self._conversation

    def _bound(self, num_prompt: int) -> TokenBound | None:
        """Return how long the next completion may be; None where the context is full."""
        room = self._max_context - num_prompt
        if room >= 1:
            left = self._limits.max_episode_tokens
            return token_bound(self._sampling.max_tokens, None if left is None else left - self._num_sampled, room)
        if self._turn == BEFORE_FIRST_TURN:
            message = (
                f"the first prompt has {num_prompt} tokens and leaves no room for an answer in a context of "
                f"{self._max_context}; raise data.max_len or leave long prompts out"
            )
            raise EpisodeError(Failure(FailureKind.PROMPT_TOO_LONG, message, BEFORE_FIRST_TURN))
        return None

    def _turn_sampling(self, bound: TokenBound) -> Sampling:
        if self._seed_for is None and bound.max_tokens == self._sampling.max_tokens:
            return self._sampling
        seed = None if self._seed_for is None else self._seed_for(self._task.id, self._attempt, self._turn)
        return replace(self._sampling, max_tokens=bound.max_tokens, seed=seed)

    async def _generate(
        self, prompt_ids: NDArray[np.int32], images: Images, sampling: Sampling, seconds_left: float
    ) -> Completion | None:
        """Sample one completion; None when the episode's time ran out meanwhile."""
        timeout_s = self._limits.generate_timeout_s
        request = f"{self._task.id}/{self._attempt}/{self._turn}"
        with _Watch(self, Stage.GENERATE):
            deadline = Deadline(min(timeout_s, seconds_left))
            try:
                with deadline:
                    completion = await self._generator.generate(prompt_ids, sampling, images or None, request)
            except TimeoutError as error:
                if not deadline.has_expired:
                    raise
                if seconds_left < timeout_s:
                    return None
                raise TimeoutError(f"no completion within generate_timeout_s={timeout_s}") from error
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                raise EngineError(f"the engine cancelled request {request!r} by itself") from error
            if (length := len(completion.token_ids)) > sampling.max_tokens:
                raise EngineError(f"{length} tokens came for {request!r}; max_tokens was {sampling.max_tokens}")
        return completion

    def _record(self, completion: Completion, sampling: Sampling, bound: TokenBound) -> Action:
        with _Watch(self, Stage.RENDER):
            assert self._env is not None
            action = self._talk().record(completion, sampling, with_query=self._env.wants_query)
        self._num_sampled += len(completion.token_ids)
        self._turn_ends += (bound.end_of(completion),)
        if completion.stop_reason is StopReason.ABORT:
            # Half a completion is no action: its reward would be that of something nobody wrote.
            message = f"the engine aborted turn {self._turn} after {len(completion.token_ids)} tokens"
            raise EpisodeError(Failure(FailureKind.ENGINE, message, self._turn))
        return action

    async def _step(self, action: Action) -> StepOutcome:
        with _Watch(self, Stage.ENV):
            assert self._env is not None
            outcome = checked_step(await self._env.step(action, self._limits.env_timeout_s), self._env.name)
            if not math.isfinite(total := sum(self._rewards) + outcome.reward):
                raise RewardError(f"the rewards of {self._env.name} sum to {total}; wanted a finite number")
            self._sampling = resampled(self._first_sampling, outcome.info.sampling, self._sampling)
        self._rewards += (outcome.reward,)
        self._take(outcome.info)
        return outcome

    def _end_after(self, outcome: StepOutcome) -> EndReason | None:
        most = self._limits.max_episode_tokens
        if outcome.terminated:
            return EndReason.TERMINATED
        if outcome.truncated:
            return EndReason.TRUNCATED
        if self._turn + 1 >= self._limits.max_turns:
            return EndReason.MAX_TURNS
        if most is not None and self._num_sampled >= most:
            return EndReason.MAX_TOKENS
        return EndReason.MAX_SECONDS if self._seconds_left() <= 0 else None

    def _out_of_time(self, kind_without_reward: FailureKind) -> EndReason:
        """End as `max_seconds`; before the first reward that would be a reward of 0 for nothing, so it fails."""
        if self._rewards:
            return EndReason.MAX_SECONDS
        message = f"max_seconds={self._limits.max_seconds} ran out before the first turn was complete"
        raise EpisodeError(Failure(kind_without_reward, message, self._turn))

    def _seconds_left(self) -> float:
        return self._started_at + self._limits.max_seconds - time.monotonic()

    def _take(self, info: Info) -> None:
        self._score = self._score if info.score is None else info.score
        self._extra_logs.update(info.extra_logs)

    def _gather(self) -> None:
        if self._conversation is not None:
            self._messages = tuple(self._conversation.messages)
            self._sequences = tuple(s.cut(self._max_context) for s in self._conversation.sequences())


class _Watch:
    """Measures a stage, and turns what fails in it into an `EpisodeError`; a dozen are made in each turn."""

    __slots__ = ("_began_at", "_episode", "_stage")

    def __init__(self, episode: Episode, stage: Stage) -> None:
        self._episode = episode
        self._stage = stage

    def __enter__(self) -> None:
        self._began_at = time.perf_counter()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Literal[False]:
        self._episode._seconds[self._stage] += time.perf_counter() - self._began_at
        if isinstance(error, Exception) and not isinstance(error, EpisodeError):
            raise EpisodeError(failure_of(error, self._stage, self._episode._turn)) from error
        return False
