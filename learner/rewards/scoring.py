"""What a reward model reads of an episode, and what is made of its answer.

The reward of a text is the model's value after its last token, whatever token that is. (transformers' own classifiers
look for the last token that is no padding: where padding is the end-of-sequence token, they read the one before it.)
"""

# A attempts, N tokens, S rows

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...agents.tokenizer import Codec
from ...errors import ConfigError, TrajectoryError
from ...executors.episodes.trajectory import Trajectory
from ..batch import Batch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

TokenIds = NDArray[np.int32]
Recode = Callable[[TokenIds], TokenIds]
"""From the policy's tokens to the reward model's."""


@dataclass(frozen=True)
class Normalization:
    """Mean and deviation of a reward model's values, as its training left them in its configuration."""

    mean: float
    std: float

    def apply(self, values: ArrayLike) -> NDArray[np.float64]:
        """Subtract the mean and divide by the deviation."""
        normalised: NDArray[np.float64] = (np.asarray(values, np.float64) - self.mean) / self.std
        return normalised


@dataclass(frozen=True)
class RewardReader:
    """How a reward model reads attempts and what is made of its answer; see `reward_batch` and `model_scores`."""

    recode: Recode | None
    max_tokens: int
    moments: Normalization | None


def normalization(config: "PretrainedConfig", model: str) -> Normalization:
    """Return the moments that a reward model's configuration holds.

    Raises:
        ConfigError: It holds none, or a deviation that nothing can be divided by.
    """
    moments = {name: getattr(config, name, None) for name in ("mean", "std")}
    wrong = [name for name, value in moments.items() if not isinstance(value, int | float) or not np.isfinite(value)]
    mean, std = moments["mean"], moments["std"]
    if wrong or mean is None or std is None or std <= 0:
        raise ConfigError(
            f"--reward.normalize_enable wants numbers 'mean' and 'std' (above 0) in the configuration of {model!r}, "
            f"got {mean} and {std}; train the reward model with its moments, or leave the option out"
        )
    return Normalization(float(mean), float(std))


def recoding(policy: "PreTrainedTokenizerBase", reward: "PreTrainedTokenizerBase") -> Recode | None:
    """Return how the policy's tokens become the reward model's; None where both have the same vocabulary.

    The text keeps its special tokens; those that the reward model does not know become plain text to it.
    """
    if policy.get_vocab() == reward.get_vocab():
        return None
    before, after = Codec(policy), Codec(reward)
    return lambda token_ids: after.encode(before.decode(token_ids))


def reward_batch(trajectories: Sequence[Trajectory], recode: Recode | None, max_tokens: int) -> Batch:
    """Lay out one row for each attempt that can be scored: its last sequence, which is its final context.

    Failed and empty attempts are left out, and those too long for the reward model: a score of half a text is none.

    Args:
        trajectories: A step's; the batch's `attempts` are their places.
        recode: As `recoding` gives it.
        max_tokens: Most tokens that the reward model reads.
    """
    rows: dict[int, TokenIds] = {}
    for attempt, trajectory in enumerate(trajectories):
        if trajectory.is_valid and trajectory.sequences and len(trajectory.sequences[-1]):
            token_ids = trajectory.sequences[-1].token_ids
            token_ids = token_ids if recode is None else recode(token_ids)
            if 0 < len(token_ids) <= max_tokens:
                rows[attempt] = token_ids
    return rows_batch(list(rows.values()), list(rows))


def rows_batch(rows: Sequence[TokenIds], attempts: ArrayLike | None = None) -> Batch:
    """Lay rows of tokens end to end; none of them is an action."""
    lengths = np.array([len(row) for row in rows], np.int64)
    num_tokens = int(lengths.sum())
    return Batch(
        token_ids=np.concatenate([np.empty(0, np.int32), *rows]).astype(np.int32),
        is_action=np.zeros(num_tokens, bool),
        rollout_logprobs=np.full(num_tokens, np.nan, np.float32),
        versions=np.full(num_tokens, -1, np.int32),
        temperatures=np.ones(num_tokens, np.float32),
        turns=np.full(num_tokens, -1, np.int32),
        starts=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        attempts=np.arange(len(rows)) if attempts is None else np.asarray(attempts, np.int64),
        advantages=np.zeros(num_tokens, np.float32),
    )


def last_values(batch: Batch, values_N: ArrayLike) -> NDArray[np.float64]:
    """Return float64 [S], the value after each row's last token."""
    values: Any = np.asarray(values_N, np.float64)
    if values.shape != (batch.num_tokens,):
        raise TrajectoryError(f"one value for each of {batch.num_tokens} tokens wanted, got shape {values.shape}")
    picked: NDArray[np.float64] = values[batch.starts[1:] - 1]
    return picked


def model_scores(
    batch: Batch, values_N: ArrayLike, num_attempts: int, moments: Normalization | None = None
) -> NDArray[np.float64]:
    """Return float64 [A], the reward model's score of each attempt; NaN where it read none.

    Args:
        batch: As `reward_batch` made it.
        values_N: The model's value after each of its tokens.
        num_attempts: Attempts of the step (A).
        moments: Normalise by these.
    """
    values_S = last_values(batch, values_N)
    scores_A = np.full(num_attempts, np.nan)
    scores_A[batch.attempts] = values_S if moments is None else moments.apply(values_S)
    return scores_A
