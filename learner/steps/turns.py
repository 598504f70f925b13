"""What single turns of a step's attempts got, in which state each began, and how many attempts share it.

All go into `AdvantageInputs`, where turns are numbered as in the trajectories.
"""

# A attempts, T turns of the longest valid attempt

import json
import pickle
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...envs.messages import Message
from ...errors import TrajectoryError
from ...executors.episodes.branching import shared_turn
from ...executors.episodes.trajectory import Trajectory
from ...executors.rollouts.buffer import Group

NO_STATE = -1


def turn_rewards(
    trajectories: Sequence[Trajectory], shaped_rewards_A: ArrayLike, weight: float = 1.0
) -> NDArray[np.float64]:
    """Return float64 [A, T]: rows sum to the shaped rewards; 0 past the last turn and where an attempt does not count.

    Turns have the environment's rewards. What else made the attempt's (a reward model, clipping, penalties on
    length) is put on the last turn: it was the whole episode's.

    Args:
        trajectories: A step's attempts (A).
        shaped_rewards_A: NaN where an attempt does not count.
        weight: Of the environment's rewards.

    Raises:
        TrajectoryError: There is not one shaped reward per trajectory.
    """
    shaped_A = np.asarray(shaped_rewards_A, dtype=np.float64)
    if shaped_A.shape != (len(trajectories),):
        raise TrajectoryError(f"one shaped reward per trajectory ({len(trajectories)}) wanted, got {shaped_A.shape}")
    rewards_AT = np.zeros((len(trajectories), _most_turns(trajectories)))
    for row, trajectory, shaped in zip(rewards_AT, trajectories, shaped_A, strict=True):
        if trajectory.is_valid and np.isfinite(shaped):
            rewards = weight * trajectory.rewards_per_turn
            row[: len(rewards)] = rewards
            if shaped != (own := float(rewards.sum())):
                row[_num_turns(trajectory) - 1] += shaped - own
    return rewards_AT


def turn_states(trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Return int64 [A, T]: the number of the state that each turn began in.

    A state is what the environment said since the last completion, all messages of it, except ids of tool calls.
    Equal observations at the same task are equal states, those at different tasks are not. -1 is none: past the
    last turn, where an attempt failed, and where nothing was said, which tells no two states apart.
    """
    states_AT = np.full((len(trajectories), _most_turns(trajectories)), NO_STATE, np.int64)
    known: dict[tuple[str, bytes], int] = {}
    for row, trajectory in zip(states_AT, trajectories, strict=True):
        if trajectory.is_valid:
            for turn, observation in enumerate(_observations(trajectory)):
                if observation:
                    row[turn] = known.setdefault((trajectory.task.id, _digest(observation)), len(known))
    return states_AT


def turn_sharing(groups: Sequence[Group], is_valid_A: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """Return int64 [A, T]: how many valid attempts have a turn in common with this one, which counts too.

    None where no attempt branched off another.
    """
    trajectories = [t for group in groups for t in group.trajectories]
    if not any(t.branch_of for t in trajectories):
        return None
    sharing_AT = np.ones((len(trajectories), _most_turns(trajectories)), np.int64)
    start = 0
    for group in groups:
        branches = {t.attempt: t.branch_of for t in group.trajectories}
        rows = range(start, start + len(group.trajectories))
        start = rows.stop
        for (row, one), (other_row, other) in permutations(zip(rows, group.trajectories, strict=True), 2):
            turn = shared_turn(branches, one.attempt, other.attempt)
            if turn is not None and is_valid_A[other_row]:
                sharing_AT[row, : turn + 1] += 1
    return sharing_AT


def _num_turns(trajectory: Trajectory) -> int:
    """At least one, so that a reward has its place."""
    return max(1, trajectory.num_turns, len(trajectory.rewards_per_turn))


def _most_turns(trajectories: Sequence[Trajectory]) -> int:
    return max((_num_turns(t) for t in trajectories if t.is_valid), default=0)


def _observations(trajectory: Trajectory) -> list[Sequence[Message]]:
    """Return what came before each completion.

    Each completion is one assistant message. An environment may speak as the assistant too, in examples that open
    the episode: of more assistant messages than turns, the last ones are the completions.
    """
    messages = trajectory.messages
    spoken = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if len(spoken) < trajectory.num_turns:
        raise TrajectoryError(
            f"task {trajectory.task.id!r}, attempt {trajectory.attempt}: {trajectory.num_turns} turns and only "
            f"{len(spoken)} assistant messages; credit 'turn_group' needs the messages of every turn"
        )
    completions = spoken[len(spoken) - trajectory.num_turns :]
    return [messages[after + 1 : before] for after, before in pairwise([-1, *completions])]


def _digest(observation: Sequence[Message]) -> bytes:
    shown = [{key: part for key, part in message.items() if key != "tool_call_id"} for message in observation]
    return blake2b(json.dumps(shown, sort_keys=True, default=_digest_of_object).encode()).digest()


def _digest_of_object(thing: object) -> str:
    """Stand in for what is no JSON, such as an image."""
    return f"{type(thing).__qualname__}:{blake2b(pickle.dumps(thing)).hexdigest()}"
