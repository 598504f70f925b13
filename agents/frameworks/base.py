"""What runs a user's agent for one episode, and what counts as a reward among the things that agents return."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...envs.task import Split, Task
from ...errors import RewardError

MAX_CONCURRENCY = 64


@dataclass(frozen=True)
class Endpoint:
    """Where the agent of one episode reaches its model.

    Attributes:
        base_url: For clients of OpenAI's API; it holds the episode's session.
        api_key: Of this run.
        model: A name; any other serves as well.
    """

    base_url: str
    api_key: str
    model: str = "policy"

    @property
    def anthropic_url(self) -> str:
        """For clients of Anthropic's API, which write the version themselves."""
        return self.base_url.removesuffix("/v1")


class UserAgent(Protocol):
    """Runs a user's agent; one serves all episodes of a process, many of them at once."""

    @property
    def max_concurrency(self) -> int | None:
        """Most episodes at once; None for any number."""
        ...

    async def run(self, task: Task, endpoint: Endpoint) -> Any:
        """Run one episode and return what the agent returns, perhaps its reward.

        Raises:
            asyncio.CancelledError: The caller cancelled; what can be ended has been.
            Exception: Whatever the agent raised.
        """
        ...

    def tasks(self, split: Split, seed: int) -> Sequence[Task] | None:
        """Return the tasks that the agent's file brings; None where it brings none."""
        ...

    def complaints(self) -> list[str]:
        """Return what is doubtful where no reward function is given."""
        ...

    def close(self) -> None:
        """End what runs beside the episodes."""
        ...


@dataclass(frozen=True)
class AgentReward:
    """What an episode is worth.

    Attributes:
        per_turn: float64, one for each answer.
        score: 0 to 1, for filtering; None where none was given.
        extra_logs: Numbers of the agent's own.
    """

    per_turn: NDArray[np.float64]
    score: float | None = None
    extra_logs: dict[str, float] = field(default_factory=dict)


def on_last_turn(reward: float, num_turns: int) -> NDArray[np.float64]:
    """Return a reward for each turn: nothing for all but the last."""
    per_turn = np.zeros(num_turns)
    per_turn[-1] = reward
    return per_turn


def parse_return(returned: Any, num_turns: int, source: str) -> AgentReward:
    """Turn what an agent returned into rewards.

    Args:
        returned: A number, or a mapping with `reward` (or `rewards`, one for each answer), and optionally `score` and
            `extra_logs`.
        num_turns: Answers that the agent got; at least one.
        source: The agent, for messages.

    Raises:
        RewardError: It is none of this.
    """
    if not isinstance(returned, Mapping):
        return AgentReward(on_last_turn(_number(returned, "its reward", source), num_turns))
    score, logs = returned.get("score"), returned.get("extra_logs")
    if logs is not None and not isinstance(logs, Mapping):
        raise RewardError(f"{source} returned extra_logs of type {type(logs).__name__}; wanted a dict of numbers")
    return AgentReward(
        _per_turn(returned, num_turns, source),
        None if score is None else _number(score, "'score'", source),
        {str(key): _number(value, f"extra_logs[{key!r}]", source) for key, value in (logs or {}).items()},
    )


def _per_turn(returned: Mapping[Any, Any], num_turns: int, source: str) -> NDArray[np.float64]:
    rewards = returned.get("rewards")
    if (rewards is None) == ("reward" not in returned):
        raise RewardError(
            f"{source} returned a dict with the keys {sorted(map(str, returned))[:20]}; wanted either 'reward' or "
            "'rewards', one for each answer"
        )
    if rewards is None:
        return on_last_turn(_number(returned["reward"], "'reward'", source), num_turns)
    numbers = [_number(each, "one of 'rewards'", source) for each in rewards]
    if len(numbers) != num_turns:
        raise RewardError(f"{source} returned {len(numbers)} rewards, and its model answered {num_turns} times")
    return np.asarray(numbers, np.float64)


def _number(value: Any, what: str, source: str) -> float:
    if value is None:
        raise RewardError(
            f"{source} returned None as {what}; return a number, or give --reward.remote_url a reward function"
        )
    try:
        number = math.nan if isinstance(value, str) else float(value)  # takes arrays and tensors of one number as well
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(f"{source} returned {repr(value)[:120]} as {what}; wanted a finite number")
    return number
