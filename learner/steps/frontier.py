"""Which tasks come next: one permutation per pass, at a position that survives a restart."""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...envs.mixed_tasks import pass_order
from ...envs.task import Task
from ...errors import ConfigError
from ...executors.rollouts.draws import Draw


@dataclass(frozen=True)
class FrontierState:
    """Where a run stands in its tasks, and which tasks these are.

    Attributes:
        position: Draws so far, over all passes.
        open: Serials of the draws that nothing came of yet.
    """

    fingerprint: str
    seed: int
    position: int
    open: tuple[int, ...] = ()


class Frontier:
    """Hands out tasks; every task once per pass, the end of a pass drops nothing."""

    def __init__(self, tasks: Sequence[Task], num_passes: int, seed: int, fingerprint: str) -> None:
        if not len(tasks):
            raise ConfigError("there are no tasks to train on; does the dataset have rows, and the environment tasks?")
        self._tasks = tasks
        self._num_draws = len(tasks) * num_passes
        self._position = 0
        self._given_back: list[int] = []  # a heap: what was drawn first comes first again
        self._seed = seed
        self._fingerprint = fingerprint
        self._orders: dict[int, np.ndarray] = {}  # of the last two passes; an old one may be asked for once more

    @property
    def num_left(self) -> int:
        """Tasks that can still be drawn, over all passes."""
        # A run that goes on with fewer passes may stand behind their end.
        return max(0, self._num_draws - self._position) + len(self._given_back)

    def draw(self) -> Draw | None:
        """Return the next task, those that were given back first; None when there is none left."""
        if self._given_back:
            return self.named(heapq.heappop(self._given_back))
        if self._position >= self._num_draws:
            return None
        self._position += 1
        return self.named(self._position - 1)

    def give_back(self, draw: Draw) -> None:
        """Take back a task that was not used; it is drawn again."""
        heapq.heappush(self._given_back, draw.serial)

    def named(self, serial: int) -> Draw:
        """Return the draw of this serial."""
        turn, place = divmod(serial, len(self._tasks))
        if turn not in self._orders:
            order = pass_order(self._tasks, np.random.default_rng([self._seed, turn]))
            self._orders = {key: self._orders[key] for key in sorted(self._orders)[-1:]} | {turn: order}
        return Draw(serial, self._tasks[int(self._orders[turn][place])])

    def state(self, running: Iterable[int] = ()) -> FrontierState:
        """Return what `restore` needs; `running` are the serials of draws that nothing came of yet."""
        serials = tuple(sorted([*self._given_back, *running]))
        return FrontierState(self._fingerprint, self._seed, self._position, serials)

    def restore(self, state: FrontierState) -> str | None:
        """Go on where `state` stood; with other tasks begin anew and return a line that says so."""
        if state.fingerprint != self._fingerprint:
            return (
                "the checkpoint was written with another set of tasks: the model goes on, the tasks begin at the first"
            )
        if state.seed != self._seed:
            return f"the checkpoint used seed {state.seed}, this run {self._seed}: the tasks begin at the first"
        self._position = state.position
        self._given_back = sorted(state.open)
        return None
