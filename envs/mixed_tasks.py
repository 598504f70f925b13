"""Tasks of several environments in one set, interleaved by weight; the ids say whose each is."""

# M members, N places in the set

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .task import LazyTasks, Task

Ints = NDArray[np.int64]
MOST_TASKS = 50_000_000
_ROUNDING = 1e-6  # of numbers of tasks


class MixedTasks(Sequence[Task]):
    """Tasks of several members; an id is `MEMBER/ID`, and `MEMBER+1/ID` when the member's tasks come once more.

    Args:
        parts: Each member's own tasks.
        member_N: Which member's task stands at each place, by its number.
        rank_N: How many of that member's stand before it.
    """

    def __init__(self, parts: Mapping[str, Sequence[Task]], member_N: Ints, rank_N: Ints) -> None:
        self.parts = parts
        self._names, self._parts = list(parts), list(parts.values())
        self._member_N, self._rank_N = member_N, rank_N

    def __len__(self) -> int:
        return len(self._member_N)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> "MixedTasks": ...
    def __getitem__(self, index: int | slice) -> "Task | MixedTasks":
        if isinstance(index, slice):
            return MixedTasks(self.parts, self._member_N[index], self._rank_N[index])
        member = int(self._member_N[index])
        lap, place = divmod(int(self._rank_N[index]), len(self._parts[member]))
        task = self._parts[member][place]
        return replace(task, id=f"{self._names[member]}{f'+{lap}' if lap else ''}/{task.id}")

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def order(self, rng: np.random.Generator) -> Ints:
        """Return a random order of the places in which members follow each other as they do now.

        A member whose tasks come several times has all of them before one comes again.
        """
        order_N = np.empty(len(self), np.int64)
        for member, part in enumerate(self._parts):
            places = np.flatnonzero(self._member_N == member)
            laps = self._rank_N[places] // len(part)
            order_N[places] = places[np.lexsort((rng.random(len(places)), laps))]
        return order_N


def mixed(parts: Mapping[str, Sequence[Task]], weights: Mapping[str, float]) -> MixedTasks:
    """Interleave the tasks of members, none of them empty, so that any stretch holds each one's share.

    The set ends when all tasks of all members have come; those of members that have fewer for their share come again.
    Tasks that are drawn from seeds have no end, and are not waited for; where all are such, none comes again.

    Raises:
        ConfigError: The weights are so far apart that the set would be too long.
    """
    weight_M = np.array([weights[name] for name in parts], np.float64)
    size_M = np.array([len(part) for part in parts.values()], np.float64)
    is_finite_M = np.array([not is_endless(part) for part in parts.values()])
    # The k-th task of a member (from 0) stands at (k + 1/2) / weight on a common line.
    end_M = (size_M - 0.5) / weight_M
    end = float(end_M[is_finite_M].max() if is_finite_M.any() else end_M.min())
    total = float((end * weight_M + 0.5).sum())
    if total > MOST_TASKS:
        raise ConfigError(
            f"a mixture in which all tasks come by these weights has {total:.3g} of them, and {MOST_TASKS:.0g} are the "
            f"most: {', '.join(f'{name} {len(part)} of weight {weights[name]:g}' for name, part in parts.items())}; "
            "bring the weights closer together, or the numbers of tasks (max_samples of a member's data)"
        )
    counts = [math.floor(end * weight + 0.5 + _ROUNDING) for weight in weight_M]
    member_N = np.repeat(np.arange(len(parts)), counts)
    rank_N = np.concatenate([np.arange(count) for count in counts])
    order_N = np.lexsort((member_N, (rank_N + 0.5) / weight_M[member_N]))
    return MixedTasks(parts, member_N[order_N], rank_N[order_N])


def is_endless(tasks: Sequence[Task]) -> bool:
    """Say whether these tasks are drawn from seeds, as many as one likes."""
    return isinstance(tasks, LazyTasks) and tasks.is_endless


def pass_order(tasks: Sequence[Task], rng: np.random.Generator) -> Ints:
    """Return a random order for one pass over tasks; in a mixture, members keep their places."""
    return tasks.order(rng) if isinstance(tasks, MixedTasks) else rng.permutation(len(tasks))


def member_of(task_id: str) -> str:
    """Return the name of the member that a task of a mixture is for."""
    return task_id.partition("/")[0].partition("+")[0]


def own_task(task: Task) -> Task:
    """Return a task of a mixture as its member gave it."""
    return replace(task, id=task.id.partition("/")[2])
