"""Episodes of users' own agents: each asks the server for its turns, and its session's record is the trajectory."""

import asyncio
import contextlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Generator, Sampling, StopReason
from ...agents.chat import ChatAgent
from ...agents.frameworks.base import AgentReward, Endpoint, UserAgent, on_last_turn, parse_return
from ...agents.server.branches import SessionRecord
from ...agents.server.server import Server
from ...agents.server.session import Session
from ...envs.messages import Message
from ...envs.rewards import AnyReward, reward_of
from ...envs.task import Task
from ...errors import ConfigError, EngineError, EnvError
from ..episodes.failures import EpisodeError, Stage, failure_of
from ..episodes.limits import Limits
from ..episodes.retry import SeedFor
from ..episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from .branch_texts import texts
from .meter import Meter

_SPARE_S = 60.0  # the meter's deadline of an answer comes first
_NOTHING = SessionRecord((), (), (), (), {})


class AgentEpisodes:
    """Runs episodes of one user's agent; holds the server that answers them, and no state between them.

    Args:
        agent: Starts the conversations behind the server.
        user_agent: What asks it.
        limits: What each episode may use. `max_seconds` counts from when the agent is started, not the wait for that;
            `env_timeout_s` is of no account.
        reward: Scores what was written; by default what the agent returns is its reward.
        name: The agent's, for messages.
    """

    def __init__(
        self,
        agent: ChatAgent,
        user_agent: UserAgent,
        limits: Limits,
        *,
        reward: AnyReward | None = None,
        name: str = "the agent",
    ) -> None:
        self.agent = agent
        self.user_agent = user_agent
        self.limits = limits
        self.reward = reward
        self.name = name
        self.server = Server(agent)
        most = user_agent.max_concurrency
        self._slots = contextlib.nullcontext() if most is None else asyncio.Semaphore(most)

    async def start(self) -> None:
        """Start the server."""
        await self.server.start()

    async def check(self, generator: Generator) -> None:
        """Ask an engine for one token, so that one whose answers cannot be trained on is refused at the start.

        Raises:
            ConfigError: It gives no log-probabilities.
            EngineError: It gives nothing.
        """
        prompt_ids = self.agent.codec.encode("Hello")
        try:
            async with asyncio.timeout(self.limits.generate_timeout_s):
                completion = await generator.generate(prompt_ids, Sampling(max_tokens=1), request="check")
        except TimeoutError as error:
            raise EngineError(
                f"the engine gave no token within generate_timeout_s={self.limits.generate_timeout_s:g}"
            ) from error
        if completion.logprobs is None:
            raise ConfigError(
                f"{self.name} is trained on the log-probabilities of what the engine samples for it, and this engine "
                "gives none; use one that does (vLLM does)"
            )

    async def close(self) -> None:
        """Stop it; may be called twice."""
        self.user_agent.close()
        await self.server.stop()

    async def run(
        self,
        task: Task,
        attempt: int,
        generator: Generator,
        sampling: Sampling,
        seed_for: SeedFor | None = None,
    ) -> Trajectory:
        """Run one episode to its end; see `MultiTurn.run`."""
        async with self._slots:
            meter = Meter(generator, self.limits, task, attempt, seed_for)
            return await _Episode(self, task, attempt, meter, self._bounded(sampling)).run()

    def _bounded(self, sampling: Sampling) -> Sampling:
        most = self.limits.max_turn_tokens
        return sampling if most is None else replace(sampling, max_tokens=min(sampling.max_tokens, most))


@dataclass(frozen=True)
class _Ran:
    """What became of the agent."""

    returned: Any = None
    error: Failure | None = None
    end: EndReason = EndReason.TERMINATED


class _Episode:
    """One attempt while it runs."""

    def __init__(self, owner: AgentEpisodes, task: Task, attempt: int, meter: Meter, sampling: Sampling) -> None:
        self._owner = owner
        self._task = task
        self._attempt = attempt
        self._meter = meter
        self._sampling = sampling
        self._record = _NOTHING

    async def run(self) -> Trajectory:
        """Run the agent, and make a trajectory of what was sampled for it."""
        started_at = time.monotonic()
        reward: AgentReward | None = None
        failure: Failure | None = None
        end = EndReason.FAILED
        try:
            ran, session = await self._served()
            end = self._end(ran, session)
            reward = await self._rewarded(ran, end)
        except EpisodeError as failed:
            failure, end = failed.failure, EndReason.FAILED
        return self._trajectory(end, failure, reward, time.monotonic() - started_at)

    async def _served(self) -> tuple[_Ran, Session]:
        """Run the agent with a session of its own."""
        server, limits = self._owner.server, self._owner.limits
        name = secrets.token_urlsafe(12)  # nobody else can guess it
        timeout_s = limits.generate_timeout_s + _SPARE_S
        session = server.open(name, self._meter, self._sampling, keeps_sampling=True, timeout_s=timeout_s)
        endpoint = Endpoint(server.session_url(name), server.key)
        ran: _Ran | None = None
        try:
            ran = await self._agent(endpoint)
        finally:
            try:
                self._record = await server.close(name)
            except Exception as error:  # what broke the episode may have broken its record too
                if ran is not None:  # else a cancellation goes on
                    raise EpisodeError(failure_of(error, Stage.RENDER, session.num_turns - 1)) from error
        assert ran is not None  # else its cancellation went on
        return ran, session

    async def _agent(self, endpoint: Endpoint) -> _Ran:
        deadline = asyncio.timeout(self._owner.limits.max_seconds)
        try:
            async with deadline:
                return _Ran(await self._owner.user_agent.run(self._task, endpoint))
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                notes = "".join(f"; {note}" for note in getattr(error.__cause__, "__notes__", ()))
                message = f"max_seconds={self._owner.limits.max_seconds} ran out before the agent returned{notes}"
                return _Ran(error=Failure(FailureKind.ENV_TIMEOUT, message, -1), end=EndReason.MAX_SECONDS)
            return _Ran(error=failure_of(error, Stage.ENV, -1), end=EndReason.FAILED)

    def _end(self, ran: _Ran, session: Session) -> EndReason:
        """Say why the episode ended.

        Raises:
            EpisodeError: It failed, for one of all the reasons that are not the model's doing.
        """
        if (failure := self._meter.failure) is not None:
            told = "" if ran.error is None else f"; the agent: {ran.error.message}"
            raise EpisodeError(replace(failure, message=failure.message + told))
        if session.lost is not None:
            raise EpisodeError(failure_of(session.lost, Stage.RENDER, session.num_turns))
        if not self._record.stop_reasons:
            raise EpisodeError(self._unasked(ran, session))
        if self._meter.limit is not None and ran.end is not EndReason.MAX_SECONDS:
            ran = replace(ran, end=self._meter.limit)
        elif ran.end is EndReason.FAILED and session.outgrown is not None:
            ran = replace(ran, end=EndReason.CONTEXT)
        if ran.error is not None and (ran.end is EndReason.FAILED or self._owner.reward is None):
            where = "" if ran.end is EndReason.FAILED else f"it ended as {ran.end.value}, and returned no reward: "
            last = len(self._record.stop_reasons) - 1
            raise EpisodeError(replace(ran.error, message=where + ran.error.message, turn=last))
        return ran.end

    def _unasked(self, ran: _Ran, session: Session) -> Failure:
        if session.outgrown is not None:
            return Failure(FailureKind.PROMPT_TOO_LONG, str(session.outgrown), -1)
        if ran.error is not None:
            return ran.error
        error = EnvError(f"{self._owner.name} ended without one answer of the model; does it use the given base_url?")
        return failure_of(error, Stage.ENV, -1)

    async def _rewarded(self, ran: _Ran, end: EndReason) -> AgentReward:
        num_turns = len(self._record.stop_reasons)
        try:
            if self._owner.reward is None:
                return parse_return(ran.returned, num_turns, self._owner.name)
            return await self._scored(self._owner.reward, num_turns)
        except Exception as error:
            raise EpisodeError(failure_of(error, Stage.ENV, num_turns - 1)) from error

    async def _scored(self, function: AnyReward, num_turns: int) -> AgentReward:
        prompt, query = texts(self._record.sequences, self._owner.agent.codec)
        reward = await reward_of(function, self._task, last_answer(self._record), prompt, query)
        return AgentReward(on_last_turn(reward.reward, num_turns), reward.score, reward.extra_logs)

    def _trajectory(
        self, end: EndReason, failure: Failure | None, reward: AgentReward | None, total_s: float
    ) -> Trajectory:
        record, generate_s = self._record, min(self._meter.generate_s, total_s)
        return Trajectory(
            task=self._task,
            attempt=self._attempt,
            sequences=record.sequences,
            messages=last_conversation(record),
            rewards_per_turn=np.empty(0) if reward is None else reward.per_turn,
            turn_ends=tuple(turn_ends(record, self._meter.max_context)),
            end_reason=end,
            failure=failure,
            score=None if reward is None else reward.score,
            extra_logs={**_counts(record), **({} if reward is None else reward.extra_logs)},
            seconds={
                Stage.ENV.value: total_s - generate_s,
                Stage.RENDER.value: 0.0,
                Stage.GENERATE.value: generate_s,
                "total": total_s,
            },
        )


def _counts(record: SessionRecord) -> dict[str, float]:
    return {f"history/{name}": float(count) for name, count in record.history.items()}


def last_conversation(record: SessionRecord) -> tuple[Message, ...]:
    """Return the branch that holds the last answer, for eyes."""
    if not record.turns:
        return ()
    place = max(range(len(record.turns)), key=lambda place: max(record.turns[place]))
    return record.conversations[place]


def last_answer(record: SessionRecord) -> str:
    """Return what was answered last, without the tokens that end it."""
    _, messages = max(zip(record.turns, record.conversations, strict=True), key=lambda branch: max(branch[0]))
    return next(str(message["content"] or "") for message in reversed(messages) if message["role"] == "assistant")


def turn_ends(record: SessionRecord, max_context: int) -> list[TurnEnd]:
    """Return why each completion ended."""
    places: dict[int, tuple[int, int, int]] = {}  # of each turn: tokens, where they end, how many there could be
    for sequence in record.sequences:
        for turn, sampling in sequence.samplings.items():
            own: NDArray[np.intp] = np.flatnonzero(sequence.is_action & (sequence.turn == turn))
            places[turn] = len(own), int(own[-1]) + 1 if len(own) else 0, sampling.max_tokens
    return [_turn_end(stop, *places[turn], max_context) for turn, stop in enumerate(record.stop_reasons)]


def _turn_end(stop: StopReason, num_tokens: int, end: int, max_tokens: int, max_context: int) -> TurnEnd:
    if stop is not StopReason.LENGTH:
        return TurnEnd.ABORT if stop is StopReason.ABORT else TurnEnd.STOP
    if num_tokens < max_tokens:  # what the episode had left was less than that
        return TurnEnd.EPISODE_TOKENS
    return TurnEnd.CONTEXT_TOKENS if end == max_context else TurnEnd.TURN_TOKENS
