"""An episode by its turns: what was said, sampled and answered in each."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...agents.sequence import BEFORE_FIRST_TURN, Sequence, SequenceBuilder
from ...envs.messages import Message
from ..episodes.trajectory import Trajectory, TurnEnd

Number = TypeVar("Number", np.int32, np.float32)

_NOTHING = SequenceBuilder().build()


@dataclass(frozen=True)
class Turn:
    """One completion and what the environment answered; turn -1 is the first prompt, without a completion.

    Attributes:
        number: Which turn.
        completion: As chat; None where there is none.
        observation: As chat.
        token_ids, logprobs, versions: What was sampled.
        end: Why the completion ended.
        reward: None where the turn was not completed.
    """

    number: int
    completion: Message | None
    observation: tuple[Message, ...]
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    end: TurnEnd | None
    reward: float | None


def turns_of(trajectory: Trajectory) -> list[Turn]:
    """Return the turns, beginning with -1."""
    sampled = [int(s.turn[s.is_action].max()) + 1 for s in trajectory.sequences if s.num_actions]
    # A completion that could not be recorded has tokens, and no end.
    messages = _by_turn(trajectory.messages, max(trajectory.num_turns, *sampled, 0))
    ends = trajectory.turn_ends
    turns = []
    for number, said in enumerate(messages, start=BEFORE_FIRST_TURN):
        has_completion = number > BEFORE_FIRST_TURN and bool(said)
        rewards = trajectory.rewards_per_turn
        turns.append(
            Turn(
                number=number,
                completion=said[0] if has_completion else None,
                observation=tuple(said[has_completion:]),
                token_ids=_sampled(trajectory, number, lambda s: s.token_ids),
                logprobs=_sampled(trajectory, number, lambda s: s.logprobs),
                versions=_sampled(trajectory, number, lambda s: s.versions),
                end=ends[number] if BEFORE_FIRST_TURN < number < len(ends) else None,
                reward=float(rewards[number]) if BEFORE_FIRST_TURN < number < len(rewards) else None,
            )
        )
    return turns


def context_of(trajectory: Trajectory, number: int) -> list[list[int]]:
    """Return the ids that were shown in a turn, in each sequence where any were; what a fork repeats is left out."""
    found = []
    for sequence in trajectory.sequences:
        start = sequence.parent[1] if sequence.parent else 0
        is_shown = (sequence.turn[start:] == number) & ~sequence.is_action[start:]
        found.append(sequence.token_ids[start:][is_shown].tolist())
    return [ids for ids in found if ids]


def _by_turn(messages: Seq[Message], num_turns: int) -> list[list[Message]]:
    """Split messages before each completion; an assistant's in the first prompt, as examples are, is none."""
    spoken = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    starts = [0, *spoken[max(0, len(spoken) - num_turns) :]]
    ends = [*starts[1:], len(messages)]
    split = [list(messages[start:end]) for start, end in zip(starts, ends, strict=True)]
    return split + [[] for _ in range(num_turns + 1 - len(split))]


def _sampled(trajectory: Trajectory, number: int, pick: Callable[[Sequence], NDArray[Number]]) -> NDArray[Number]:
    return np.concatenate([pick(s)[s.is_action & (s.turn == number)] for s in (_NOTHING, *trajectory.sequences)])
