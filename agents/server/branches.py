"""A session's branches as sequences: each sampled token is an action in exactly one of them."""

# T tokens

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...envs.messages import Message
from ..base import StopReason
from ..sequence import NO_VERSION, Sequence, common_length

Branch = tuple[tuple[Sequence, ...], list[int]]
"""The sequences of a conversation, and the session's number of each of its turns."""


@dataclass(frozen=True)
class SessionRecord:
    """What a session came to.

    Attributes:
        sequences: One or more for each branch; each sampled token is an action in exactly one.
        stop_reasons: Why each turn's completion ended, in the order of the answers.
        conversations: Each branch as chat, for eyes and reward functions.
        turns: The numbers of each branch's turns.
        history: How many requests came back changed, and how many branched; see `history.History`.
    """

    sequences: tuple[Sequence, ...]
    stop_reasons: tuple[StopReason, ...]
    conversations: tuple[tuple[Message, ...], ...]
    turns: tuple[tuple[int, ...], ...]
    history: Mapping[str, int]


def joined(branches: Iterable[Branch]) -> tuple[Sequence, ...]:
    """Return the sequences of all branches; turns that an earlier one holds are context in those behind it."""
    made: list[Sequence] = []
    homes: dict[int, int] = {}  # from turns to the sequences that hold their actions
    for sequences, numbers in branches:
        places: list[int] = []  # where this branch's own sequences went
        for sequence in sequences:
            known = [turn for turn in sequence.samplings if numbers[turn] in homes]
            last_home = homes[numbers[known[-1]]] if known else None
            if last_home is not None and len(known) == len(sequence.samplings):
                places.append(last_home)
                continue
            parent, reason = sequence.parent, sequence.fork_reason
            if last_home is not None:
                home = made[last_home]
                shared = common_length(home.token_ids, sequence.token_ids, home.images, sequence.images)
                parent, reason = (last_home, shared), f"another request went on from turn {numbers[known[-1]]}"
            elif parent is not None:
                parent = places[parent[0]], parent[1]
            places.append(len(made))
            homes |= {numbers[turn]: len(made) for turn in sequence.samplings if turn not in known}
            made.append(replace(_renumbered(sequence, numbers, known), parent=parent, fork_reason=reason))
    return tuple(made)


def _renumbered(sequence: Sequence, numbers: list[int], known: list[int]) -> Sequence:
    """Return a sequence with the session's turn numbers, those known already as context."""
    is_context_T = np.isin(sequence.turn, known)
    return replace(
        sequence,
        is_action=sequence.is_action & ~is_context_T,
        logprobs=np.where(is_context_T, np.float32(np.nan), sequence.logprobs),
        versions=np.where(is_context_T, np.int32(NO_VERSION), sequence.versions),
        turn=np.asarray([-1, *numbers], np.int32)[sequence.turn + 1],
        samplings={numbers[turn]: each for turn, each in sequence.samplings.items() if turn not in known},
    )
