"""The tokens of one context, as arrays of one length, and the builder that grows them."""

import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import TrajectoryError
from .base import Completion, Sampling
from .images import Images, PlacedImage

NO_VERSION = -1
BEFORE_FIRST_TURN = -1


@dataclass(frozen=True)
class Sequence:
    """One context: what was shown and what was sampled, token for token.

    A sampled token is an action in exactly one sequence and context in the others, so that nothing
    is trained twice.

    Attributes:
        token_ids: int32.
        is_action: bool; sampled here.
        logprobs: float32, of the sampling distribution; NaN off actions.
        versions: int32, the weights that sampled the token; -1 off actions.
        turn: int32; turn k is completion k and what the environment answered, -1 the first prompt.
        samplings: How each turn that has actions here was sampled, by turn.
        parent: Index of the sequence this one branched off, and how many tokens they share.
        fork_reason: Why it branched off; None for the first.
        images: What some of its tokens stand for, in their order.
    """

    token_ids: NDArray[np.int32]
    is_action: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    turn: NDArray[np.int32]
    samplings: dict[int, Sampling]
    parent: tuple[int, int] | None = None
    fork_reason: str | None = None
    images: tuple[PlacedImage, ...] = ()

    def __post_init__(self) -> None:
        arrays = (self.token_ids, self.is_action, self.logprobs, self.versions, self.turn)
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) != 1:
            raise TrajectoryError(f"token_ids, is_action, logprobs, versions and turn need one length, got {lengths}")
        if (np.isfinite(self.logprobs) != self.is_action).any():
            raise TrajectoryError("a logprob is wanted exactly where is_action holds; does the engine return logprobs?")
        if ((self.versions >= 0) != self.is_action).any():
            raise TrajectoryError("a version is wanted exactly where is_action holds")
        end = 0
        for placed in self.images:
            if not end <= placed.start < placed.stop <= len(self) or self.is_action[placed.start : placed.stop].any():
                raise TrajectoryError(
                    f"{placed.image!r} stands at {placed.start} to {placed.stop} of {len(self)} tokens; wanted a place "
                    "among tokens that were shown, behind the image before"
                )
            end = placed.stop

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_actions(self) -> int:
        """How many tokens were sampled here."""
        return int(self.is_action.sum())

    @property
    def is_shaped(self) -> NDArray[np.bool_]:
        """Which actions were sampled from another distribution than the model's own at a temperature, by turn.

        Their logprobs do not compare with a learner's; see `Sampling.is_full_softmax`.
        """
        shaped = [turn for turn, sampling in self.samplings.items() if not sampling.is_full_softmax]
        return self.is_action & np.isin(self.turn, shaped) if shaped else np.zeros(len(self), np.bool_)

    def cut(self, max_tokens: int) -> "Sequence":
        """Return what fits: an observation that nobody will answer may be too long for the context; actions fit."""
        if len(self) <= max_tokens:
            return self
        images = tuple(placed for placed in self.images if placed.stop <= max_tokens)
        if len(images) < len(self.images):
            max_tokens = min(max_tokens, self.images[len(images)].start)  # no part of an image
        return replace(
            self,
            token_ids=self.token_ids[:max_tokens],
            is_action=self.is_action[:max_tokens],
            logprobs=self.logprobs[:max_tokens],
            versions=self.versions[:max_tokens],
            turn=self.turn[:max_tokens],
            parent=None if self.parent is None else (self.parent[0], min(self.parent[1], max_tokens)),
            images=images,
        )


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a context, appended at once; its logprobs and versions where it was sampled."""

    start: int
    stop: int
    turn: int
    logprobs: NDArray[np.float32] | None = None
    versions: NDArray[np.int32] | None = None


class SequenceBuilder:
    """Grows one sequence by whole pieces; nothing is done per token, and what is there is seldom copied.

    Attributes:
        num_tokens: How many there are.
        pieces: What they were appended as.
    """

    # Thousands wait at once, and are faster the less each holds.
    __slots__ = ("_fork_reason", "_images", "_parent", "_samplings", "_token_ids", "num_tokens", "pieces")

    def __init__(self, parent: tuple[int, int] | None = None, fork_reason: str | None = None) -> None:
        self._parent = parent
        self._fork_reason = fork_reason
        self._token_ids = np.empty(0, np.int32)  # room for some more than there are
        self._samplings: dict[int, Sampling] = {}
        self._images: tuple[PlacedImage, ...] = ()
        self.num_tokens = 0
        self.pieces: list[Piece] = []

    def add_context(self, token_ids: ArrayLike, turn: int, images: Images = ()) -> None:
        """Append tokens that were shown, not sampled; images have their places among these."""
        if images:
            self._images += tuple(placed.moved(self.num_tokens) for placed in images)
        start = self._extend(np.asarray(token_ids, dtype=np.int32))
        self.pieces.append(Piece(start, self.num_tokens, turn))

    def add_completion(self, completion: Completion, sampling: Sampling, turn: int) -> None:
        """Append what was sampled, as it is."""
        if completion.logprobs is None:
            raise TrajectoryError(
                "a completion without logprobs cannot be trained on; use an engine that returns them "
                "(zeros never stand in for what is not known)"
            )
        self._samplings[turn] = sampling
        start = self._extend(completion.token_ids)
        self.pieces.append(Piece(start, self.num_tokens, turn, completion.logprobs, completion.versions))

    def token_ids(self) -> NDArray[np.int32]:
        """All ids so far, what the engine is to see next; read-only, and no copy."""
        ids = self._token_ids[: self.num_tokens]
        ids.flags.writeable = False
        return ids

    def images(self, start: int = 0, stop: int | None = None) -> tuple[PlacedImage, ...]:
        """All images so far, or those of a part, with their places in it."""
        if not self._images:
            return ()
        stop = self.num_tokens if stop is None else stop
        return tuple(placed.moved(-start) for placed in self._images if start <= placed.start < stop)

    def fork(self) -> "SequenceBuilder":
        """Return a builder that goes on from here, independent of this one."""
        twin = copy.copy(self)
        twin._token_ids, twin._samplings, twin.pieces = self._token_ids.copy(), dict(self._samplings), list(self.pieces)
        return twin

    def build(self) -> Sequence:
        """Freeze what was gathered."""
        logprobs = np.full(self.num_tokens, np.nan, np.float32)
        versions = np.full(self.num_tokens, NO_VERSION, np.int32)
        turn = np.empty(self.num_tokens, np.int32)
        for piece in self.pieces:
            place = slice(piece.start, piece.stop)
            turn[place] = piece.turn
            if piece.logprobs is not None and piece.versions is not None:
                logprobs[place], versions[place] = piece.logprobs, piece.versions
        return Sequence(
            token_ids=self._token_ids[: self.num_tokens].copy(),
            is_action=versions >= 0,
            logprobs=logprobs,
            versions=versions,
            turn=turn,
            samplings=dict(self._samplings),
            parent=self._parent,
            fork_reason=self._fork_reason,
            images=self._images,
        )

    def _extend(self, ids: NDArray[np.int32]) -> int:
        """Append ids and return where they begin."""
        start, stop = self.num_tokens, self.num_tokens + len(ids)
        if stop > len(self._token_ids):
            grown = np.empty(stop + start // 2, np.int32)
            grown[:start] = self._token_ids[:start]
            self._token_ids = grown  # views that were given away keep the old one
        self._token_ids[start:stop] = ids
        self.num_tokens = stop
        return start


def common_length(
    left: NDArray[np.int32], right: NDArray[np.int32], left_images: Images = (), right_images: Images = ()
) -> int:
    """Return how many tokens two contexts begin with alike; images of one size differ though their tokens do not."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    length = int(different[0]) if len(different) else length
    return min([length, *(placed.start for placed in {*left_images} ^ {*right_images})])
