"""What the learner trains on: sequences laid end to end, as plain arrays that are cheap to ship.

An attempt (trajectory) may have several sequences; `attempts` says whose each one is, by its index in the list
that the batch was assembled from, so that it stays true in every part that is selected from it.
"""

# N tokens, S sequences, M action tokens, A attempts

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..agents.images import Images
from ..agents.sequence import Sequence
from ..errors import TrajectoryError
from ..executors.episodes.trajectory import Trajectory


@dataclass(frozen=True)
class Batch:
    """Sequences end to end: sequence s holds the tokens `starts[s]` up to `starts[s + 1]`.

    Attributes:
        token_ids: int32 [N].
        is_action: bool [N]; sampled, and trained on.
        rollout_logprobs: float32 [N], of the engine's policy; NaN off actions.
        versions: int32 [N], the weights that sampled the token; -1 off actions.
        temperatures: float32 [N], of the token's turn; 1 where it was greedy, and off actions.
        turns: int32 [N]; turn k is completion k of the attempt.
        starts: int64 [S + 1].
        attempts: int64 [S]; the attempt each sequence belongs to.
        advantages: float32 [N]; 0 off actions.
        old_logprobs: float32 [N], of the learner's policy before the first step on this batch.
        ref_logprobs: float32 [N], of the reference model.
        teacher_logprobs: float32 [N], of the teacher.
        values: float32 [N], the critic's estimate of what follows from before the token on; 0 off actions.
        returns: float32 [N], what the critic learns to estimate; 0 off actions.
        is_shaped: bool [N], actions sampled under a grammar, a penalty or a truncation: their rollout logprobs are of
            another distribution than the learner's. None where there is none.
        images: Of each sequence, with their places in it; empty where no sequence has any.
    """

    token_ids: NDArray[np.int32]
    is_action: NDArray[np.bool_]
    rollout_logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    temperatures: NDArray[np.float32]
    turns: NDArray[np.int32]
    starts: NDArray[np.int64]
    attempts: NDArray[np.int64]
    advantages: NDArray[np.float32]
    old_logprobs: NDArray[np.float32] | None = None
    ref_logprobs: NDArray[np.float32] | None = None
    teacher_logprobs: NDArray[np.float32] | None = None
    values: NDArray[np.float32] | None = None
    returns: NDArray[np.float32] | None = None
    is_shaped: NDArray[np.bool_] | None = None
    images: tuple[Images, ...] = ()

    def __post_init__(self) -> None:
        wrong = {name: len(array) for name, array in self._token_arrays().items() if len(array) != self.num_tokens}
        if wrong:
            raise TrajectoryError(f"a batch of {self.num_tokens} tokens needs that many of each, got {wrong}")
        if len(self.starts) != len(self.attempts) + 1 or self.starts[0] != 0 or self.starts[-1] != self.num_tokens:
            raise TrajectoryError(
                f"{len(self.attempts)} sequences of {self.num_tokens} tokens need one more start, "
                f"from 0 to {self.num_tokens}, got {self.starts}"
            )
        if self.images and len(self.images) != self.num_sequences:
            raise TrajectoryError(f"images of {len(self.images)} sequences came with {self.num_sequences} sequences")
        if (self.lengths < 1).any():
            raise TrajectoryError("a sequence of a batch has no tokens")
        if self.is_action[self.starts[:-1]].any():
            raise TrajectoryError("the first token of a sequence is an action, but nothing precedes it to predict it")

    @property
    def num_tokens(self) -> int:
        """Tokens, context included (N)."""
        return len(self.token_ids)

    @property
    def num_sequences(self) -> int:
        """Sequences (S)."""
        return len(self.attempts)

    @property
    def num_actions(self) -> int:
        """Action tokens (M)."""
        return int(self.is_action.sum())

    @property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [S], tokens of each sequence."""
        return np.diff(self.starts)

    @property
    def sequence_of_token(self) -> NDArray[np.int64]:
        """int64 [N], the sequence each token belongs to."""
        return np.repeat(np.arange(self.num_sequences), self.lengths)

    @property
    def attempt_of_token(self) -> NDArray[np.int64]:
        """int64 [N], the attempt each token belongs to."""
        return np.repeat(self.attempts, self.lengths)

    @property
    def num_attempts(self) -> int:
        """Attempts that have something to train on; one of several sequences counts once."""
        return len(np.unique(self.attempt_of_token[self.is_action]))

    def select(self, sequences: ArrayLike) -> "Batch":
        """Return these sequences, in this order; none gives an empty batch."""
        chosen = np.asarray(sequences, dtype=np.int64).reshape(-1)
        lengths = self.lengths[chosen]
        starts = _starts(lengths)
        tokens = np.arange(starts[-1]) + np.repeat(self.starts[:-1][chosen] - starts[:-1], lengths)
        arrays = {name: array[tokens] for name, array in self._token_arrays().items()}
        images = tuple(self.images[place] for place in chosen) if self.images else ()
        return replace(self, **arrays, starts=starts, attempts=self.attempts[chosen], images=images)

    def with_context(self, token_ids: NDArray[np.int32], images: Images) -> "Batch":
        """Return the batch with one more sequence, of which nothing is trained."""
        arrays = {
            name: np.concatenate([array, np.zeros(len(token_ids), array.dtype)])
            for name, array in self._token_arrays().items()
        }
        arrays["token_ids"] = np.concatenate([self.token_ids, token_ids])
        return replace(
            self,
            **arrays,
            starts=np.append(self.starts, self.num_tokens + len(token_ids)),
            attempts=np.append(self.attempts, -1),
            images=(*(self.images or ((),) * self.num_sequences), tuple(images)),
        )

    def with_advantages(self, advantages_M: ArrayLike) -> "Batch":
        """Return the batch with one advantage per action token, in their order here."""
        return replace(self, advantages=self._spread(advantages_M, "advantages"))

    def with_old_logprobs(self, logprobs_N: ArrayLike) -> "Batch":
        """Return the batch with the learner's own logprobs before its first step."""
        return replace(self, old_logprobs=np.asarray(logprobs_N, dtype=np.float32))

    def with_ref_logprobs(self, logprobs_N: ArrayLike) -> "Batch":
        """Return the batch with the reference model's logprobs."""
        return replace(self, ref_logprobs=np.asarray(logprobs_N, dtype=np.float32))

    def with_teacher_logprobs(self, logprobs_N: ArrayLike) -> "Batch":
        """Return the batch with the teacher's logprobs."""
        return replace(self, teacher_logprobs=np.asarray(logprobs_N, dtype=np.float32))

    def with_values(self, values_N: ArrayLike) -> "Batch":
        """Return the batch with the critic's values before its first step."""
        return replace(self, values=np.asarray(values_N, dtype=np.float32))

    def with_returns(self, returns_M: ArrayLike) -> "Batch":
        """Return the batch with one return per action token, in their order here."""
        return replace(self, returns=self._spread(returns_M, "returns"))

    def _spread(self, values_M: ArrayLike, name: str) -> NDArray[np.float32]:
        values = np.asarray(values_M, dtype=np.float32)
        if values.shape != (self.num_actions,):
            raise TrajectoryError(f"{name} for {self.num_actions} action tokens wanted, got shape {values.shape}")
        spread = np.zeros(self.num_tokens, np.float32)
        spread[self.is_action] = values
        return spread

    def _token_arrays(self) -> dict[str, NDArray[np.generic]]:
        others = ("starts", "attempts", "images")
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return {name: array for name, array in arrays.items() if array is not None}


def assemble(trajectories: Seq[Trajectory], is_valid_A: NDArray[np.bool_] | None = None) -> Batch:
    """Lay the sequences of all valid trajectories end to end: those that did not fail, or those named.

    The others leave no token, only a gap in `attempts`; sequences without actions teach nothing and are
    left out.
    """
    pairs = [
        (attempt, sequence)
        for attempt, trajectory in enumerate(trajectories)
        if (trajectory.is_valid if is_valid_A is None else is_valid_A[attempt])
        for sequence in trajectory.sequences
        if sequence.num_actions
    ]
    sequences = [sequence for _, sequence in pairs]
    is_action = _joined([s.is_action for s in sequences], np.bool_)
    return Batch(
        token_ids=_joined([s.token_ids for s in sequences], np.int32),
        is_action=is_action,
        rollout_logprobs=_joined([s.logprobs for s in sequences], np.float32),
        versions=_joined([s.versions for s in sequences], np.int32),
        temperatures=_joined([_temperatures(s) for s in sequences], np.float32),
        turns=_joined([s.turn for s in sequences], np.int32),
        starts=_starts(np.array([len(s) for s in sequences], np.int64)),
        attempts=np.array([attempt for attempt, _ in pairs], np.int64),
        advantages=np.zeros(len(is_action), np.float32),
        is_shaped=_joined([s.is_shaped for s in sequences], np.bool_),
        images=tuple(s.images for s in sequences) if any(s.images for s in sequences) else (),
    )


def concatenate(batches: Seq[Batch]) -> Batch:
    """Lay batches of the same attempts (parts of one batch) end to end.

    Raises:
        TrajectoryError: Some have old or reference logprobs and others have not.
    """
    if not batches:
        raise TrajectoryError("at least one batch is wanted, got none")
    arrays: dict[str, NDArray[np.generic]] = {}
    for name in {name: None for batch in batches for name in batch._token_arrays()}:
        pieces = [getattr(batch, name) for batch in batches]
        if any(piece is None for piece in pieces):
            raise TrajectoryError(f"{name} is known for some of these batches only; compute it for all or none")
        arrays[name] = np.concatenate(pieces)
    lengths = np.concatenate([batch.lengths for batch in batches])
    attempts = np.concatenate([batch.attempts for batch in batches])
    images: tuple[Images, ...] = ()
    if any(batch.images for batch in batches):
        images = tuple(each for batch in batches for each in batch.images or ((),) * batch.num_sequences)
    return replace(batches[0], **arrays, starts=_starts(lengths), attempts=attempts, images=images)  # type: ignore[arg-type]


def _temperatures(sequence: Sequence) -> NDArray[np.float32]:
    """1 off actions and where sampling was greedy: an engine's greedy logprobs are those of temperature 1."""
    temperatures = np.ones(len(sequence), np.float32)
    for turn, sampling in sequence.samplings.items():
        if sampling.temperature > 0:
            temperatures[sequence.is_action & (sequence.turn == turn)] = sampling.temperature
    return temperatures


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _joined(pieces: list[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype)
