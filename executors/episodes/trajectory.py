"""One finished episode: its sequences, its rewards, how it ended, what it took."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...agents.sequence import Sequence
from ...envs.messages import Message
from ...envs.task import Task
from ...errors import TrajectoryError
from .branching import Branch


class EndReason(StrEnum):
    """Why an episode ended; each has exactly one."""

    TERMINATED = "terminated"  # the environment: the task is over
    TRUNCATED = "truncated"  # the environment: a limit of its own
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # of the whole episode
    MAX_SECONDS = "max_seconds"
    CONTEXT = "context"  # the model's context is full
    FAILED = "failed"  # see `failure`


class TurnEnd(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    TURN_TOKENS = "turn_tokens"  # the limit per turn
    EPISODE_TOKENS = "episode_tokens"  # the limit in total
    CONTEXT_TOKENS = "context_tokens"  # the model's context
    ABORT = "abort"


class FailureKind(StrEnum):
    """What broke; a failed episode is absent from the loss and from every statistic."""

    ENV = "env"  # the environment raised or broke its contract
    ENV_TIMEOUT = "env_timeout"
    ENV_UNAVAILABLE = "env_unavailable"  # it had to wait too long for the environment
    NO_TURN = "no_turn"  # a game was over before this side of it had a turn
    REWARD = "reward"  # the reward function raised, or gave no finite number
    GRADER = "grader"  # no verdict in time
    TEMPLATE = "template"  # the messages cannot be rendered
    PROMPT_TOO_LONG = "prompt_too_long"  # the first prompt leaves no room for an answer
    FORK_REFUSED = "fork_refused"  # the model's own program kept its environment from being forked; ends no episode
    ENGINE = "engine"
    ENGINE_DEAD = "engine_dead"
    ENGINE_TIMEOUT = "engine_timeout"
    CANCELLED = "cancelled"
    LOST = "lost"  # nothing came back of it, however often it was begun
    STALE = "stale"  # too old when the learner came for it


@dataclass(frozen=True)
class Failure:
    """Why an episode yields no reward."""

    kind: FailureKind
    message: str
    turn: int  # the turn it happened in; -1 before the first


@dataclass(frozen=True)
class Trajectory:
    """One attempt at one task.

    Attributes:
        sequences: One, or several where a context forked; together they count once.
        messages: The episode as chat, derived from the tokens, for eyes and reward functions.
        rewards_per_turn: float64, one for each completed turn.
        turn_ends: Why each completion ended.
        score: 0 to 1, for filtering; None when the environment gave none.
        extra_logs: Numbers of the environment's or the reward function's own.
        seconds: Spent in each stage: `generate`, `env`, `render`, `total`.
        earlier_failures: Why the attempt was begun again, one for each time; nothing else of those tries is kept.
        branch_of: The attempt of its group that it branched off in a tree rollout, and the last turn that both have;
            None where it has all its turns for itself, or others branched off it.
        engine: Number of the engine beside which it ran, and which sampled it unless it died meanwhile.
    """

    task: Task
    attempt: int
    sequences: tuple[Sequence, ...]
    messages: tuple[Message, ...]
    rewards_per_turn: NDArray[np.float64]
    turn_ends: tuple[TurnEnd, ...]
    end_reason: EndReason
    failure: Failure | None = None
    score: float | None = None
    extra_logs: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    earlier_failures: tuple[Failure, ...] = ()
    branch_of: Branch | None = None
    engine: int | None = None

    def __post_init__(self) -> None:
        if (self.failure is not None) != (self.end_reason is EndReason.FAILED):
            raise TrajectoryError(f"ended as {self.end_reason!r} with failure {self.failure!r}: both or neither")
        if self.failure is None and not math.isfinite(self.reward):
            raise TrajectoryError(f"reward {self.reward} of task {self.task.id!r} is not a finite number")

    @property
    def is_valid(self) -> bool:
        """Whether it may enter the loss and the statistics."""
        return self.failure is None

    @property
    def reward(self) -> float:
        """The sum over turns; meaningless where the episode failed."""
        return float(sum(self.rewards_per_turn.tolist()))

    @property
    def num_turns(self) -> int:
        """Completions sampled."""
        return len(self.turn_ends)

    @property
    def num_actions(self) -> int:
        """Tokens sampled, over all sequences."""
        return sum(sequence.num_actions for sequence in self.sequences)

    @property
    def num_sampled(self) -> int:
        """Tokens sampled for this attempt alone: not those before it branched off."""
        shared = -1 if self.branch_of is None else self.branch_of[1]
        return sum(int((s.is_action & (s.turn > shared)).sum()) for s in self.sequences)

    @cached_property
    def oldest_version(self) -> int | None:
        """The version of the oldest sampled token; None when nothing was sampled."""
        oldest = [s.versions[s.is_action].min() for s in self.sequences if s.num_actions]
        return int(min(oldest)) if oldest else None

    @property
    def num_versions(self) -> int:
        """Versions of the weights that its tokens were sampled by."""
        return (
            len(np.unique(np.concatenate([s.versions[s.is_action] for s in self.sequences]))) if self.sequences else 0
        )
