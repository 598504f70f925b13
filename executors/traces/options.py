"""Options of `turngym traces`: which episodes, and how they are listed."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Selection:
    """Which episodes; None is any."""

    id: str | None = None
    """STEP/TASK/ATTEMPT."""
    split: str | None = None
    """train or eval."""
    steps: tuple[int, int] | None = None
    """First and last step."""
    task: str | None = None
    """Part of the task's id."""
    failed: bool = False
    """Only attempts that failed."""
    end_reason: str | None = None
    """How the episode ended, or the kind of its failure."""
    min_reward: float | None = None
    """Least reward; an attempt that failed has none."""
    max_reward: float | None = None
    """Highest reward; an attempt that failed has none."""
    engine: int | None = None
    """Number of the engine that sampled; not known of episodes that older versions wrote."""
    contains: str | None = None
    """Text in the messages or the failure, in small or capital letters."""


@dataclass(frozen=True)
class ViewOptions:
    """How episodes are listed."""

    sort: str | None = None
    """Column to sort by; by default the order they were written in."""
    descending: bool = False
    """Highest first."""
    limit: int | None = None
    """Most lines; by default 200, and all with json."""
    tokens: bool = False
    """Show ids, logprobs and versions of a single episode."""
    json: bool = False
    """One JSON object for each line."""


@dataclass(frozen=True)
class RescoreOptions:
    """How episodes are scored anew."""

    remote_url: str
    """A Python file with reward_func(queries, prompts, labels, **kwargs), or HTTP URLs, comma-separated."""
    timeout_s: float = 180.0
    """Deadline of one call."""
    model: str | None = None
    """Model whose tokenizer turns tokens into text; by default the run's."""
    out: str | None = None
    """New folder for the episodes with their new rewards."""


@dataclass(frozen=True)
class ReplayOptions:
    """What recorded completions are replayed against."""

    agent: str | None = None
    """As --agent of a run; by default the run's, with its arguments."""
    agent_args: dict[str, Any] = field(default_factory=dict)  # Any: what an environment takes is its own affair
    """Further arguments, over the run's where the agent is the same."""
    model: str | None = None
    """Model whose tokenizer and template are used; by default the run's."""
