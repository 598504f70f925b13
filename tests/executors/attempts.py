"""Attempts without an episode: what tests of buffers, dispatch and rollouts pass around."""

from collections.abc import Iterable, Sequence

import numpy as np

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.task import Task
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.executors.fleet.fleet_engine import Order, Outcome
from turngym.executors.rollouts.draws import Draw

SAMPLING = Sampling(max_tokens=8)
BROKEN = Failure(FailureKind.ENV, "broken", 0)


def attempt(task: Task, number: int, versions: Sequence[int] = (0,), failure: Failure | None = None) -> Trajectory:
    """A trajectory whose only completion was sampled by these versions, one per token."""
    builder = SequenceBuilder()
    builder.add_context([1, 2], -1)
    ids = np.arange(len(versions), dtype=np.int32)
    logprobs = np.full(len(versions), -1, np.float32)
    builder.add_completion(Completion(ids, logprobs, np.asarray(versions, np.int32), StopReason.STOP), SAMPLING, 0)
    end = EndReason.FAILED if failure else EndReason.TERMINATED
    return Trajectory(task, number, (builder.build(),), (), np.array([1.0]), (TurnEnd.STOP,), end, failure)


def outcome(order: Order, version: int = 0, *, lost: Iterable[int] = (), failed: Iterable[int] = ()) -> Outcome:
    """What comes of an order: all its attempts, but for some."""
    gone, broken = set(lost), set(failed)
    done = [
        attempt(order.task, number, [version], BROKEN if number in broken else None)
        for number in order.numbers
        if number not in gone
    ]
    return Outcome(order, tuple(done), tuple(sorted(gone)))


class Line:
    """Tasks in a line, each drawn once; what is given back comes first."""

    def __init__(self, count: int) -> None:
        self._draws = [
            Draw(serial, Task(id=f"task {serial}", prompt="6 times 7?", label="42")) for serial in range(count)
        ]

    @property
    def num_left(self) -> int:
        return len(self._draws)

    @property
    def serials(self) -> list[int]:
        return [draw.serial for draw in self._draws]

    def draw(self) -> Draw | None:
        return self._draws.pop(0) if self._draws else None

    def give_back(self, draw: Draw) -> None:
        self._draws.insert(0, draw)
