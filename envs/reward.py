"""What a reward is, and what counts as one among the things that reward functions return.

A failure is a `RewardError` (or a `DeadlineError`), never a reward of 0; a reward of 0.0 is a value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..errors import RewardError


@dataclass(frozen=True)
class Reward:
    """What one query is worth.

    Attributes:
        reward: Finite.
        score: 0 to 1, for filtering; the reward itself where the function gives no scores.
        extra_logs: Numbers of the function's own.
    """

    reward: float
    score: float
    extra_logs: dict[str, float] = field(default_factory=dict)


class RewardFunction(Protocol):
    """Scores a batch of finished texts."""

    async def __call__(self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[Reward]:
        """Return one `Reward` per query.

        Args:
            queries: Prompt and response as one text, special tokens kept.
            prompts: The prompts alone, each a prefix of its query.
            labels: The expected answers.

        Raises:
            RewardError: The function raised, or returned something that is no reward.
            DeadlineError: It gave no answer in time.
        """
        ...


def parse_rewards(returned: Any, num_queries: int, source: str) -> list[Reward]:
    """Turn what a reward function returned into rewards, or raise `RewardError` naming `source`.

    Args:
        returned: A tensor, array or list of numbers, or a mapping with `rewards` and optionally
            `scores` and `extra_logs` (each a number or one per query).
        num_queries: How many were asked for.
        source: The file or URL, for messages.
    """
    if not isinstance(returned, Mapping):
        returned = {"rewards": returned}
    if "rewards" not in returned:
        raise RewardError(
            f"{source!r} returned a dict with the keys {sorted(map(str, returned))}; wanted 'rewards', "
            "and optionally 'scores' and 'extra_logs'"
        )
    rewards = _numbers(returned["rewards"], num_queries, "rewards", source)
    scores = returned.get("scores")
    scores = rewards if scores is None else _numbers(scores, num_queries, "scores", source)
    logs = returned.get("extra_logs")
    if logs is not None and not isinstance(logs, Mapping):
        raise RewardError(f"{source!r} returned extra_logs of type {type(logs).__name__}; wanted a dict of numbers")
    columns = {
        str(key): _numbers(value, num_queries, f"extra_logs[{key!r}]", source, spread=True)
        for key, value in (logs or {}).items()
    }
    return [
        Reward(rewards[i], scores[i], {key: column[i] for key, column in columns.items()}) for i in range(num_queries)
    ]


def _numbers(value: Any, num_queries: int, what: str, source: str, *, spread: bool = False) -> list[float]:
    """Return one finite float per query; `spread` repeats a single number for all."""
    if hasattr(value, "detach"):  # a tensor; torch itself need not be imported
        value = value.detach().float().cpu().numpy()
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RewardError(
            f"{source!r} returned {_short(value)} as {what}; wanted {num_queries} numbers, one per query ({error})"
        ) from error
    if value is None or (array.size == 0 and num_queries):
        raise RewardError(f"{source!r} returned {_short(value)} as {what}; wanted {num_queries} numbers, one per query")
    if array.ndim == 0 and (spread or num_queries == 1):
        array = np.full(num_queries, array)
    if array.size != num_queries or array.ndim == 0:
        raise RewardError(f"{source!r} returned {array.size} {what} for {num_queries} queries; wanted one per query")
    array = array.reshape(-1)
    if not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        raise RewardError(
            f"{source!r} returned {array[bad]} as {what} of query {bad} (None counts as NaN); wanted a finite number. "
            "Raise an exception where no reward can be given: the attempt is then left out and counted"
        )
    return [float(number) for number in array]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
