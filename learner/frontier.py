"""Which tasks come next: one permutation per pass, at a position that survives a restart."""

from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError


@dataclass(frozen=True)
class FrontierState:
    """Where a run stands in its tasks, and which tasks these are."""

    fingerprint: str
    seed: int
    position: int  # tasks handed out so far, over all passes


class Frontier:
    """Hands out task indices; every task once per pass, the end of a pass drops nothing."""

    def __init__(self, num_tasks: int, num_passes: int, seed: int, fingerprint: str) -> None:
        if num_tasks < 1:
            raise ConfigError("there are no tasks to train on; does the dataset have rows, and the environment tasks?")
        self._num_tasks = num_tasks
        self._num_passes = num_passes
        self._position = 0
        self._seed = seed
        self._fingerprint = fingerprint

    @property
    def num_left(self) -> int:
        """Tasks not handed out yet, over all passes."""
        return max(0, self._num_tasks * self._num_passes - self._position)

    def take(self, count: int) -> list[int]:
        """Return the next `count` task indices, fewer at the very end."""
        taken: list[int] = []
        while len(taken) < count and self.num_left:
            turn, start = divmod(self._position, self._num_tasks)
            order = np.random.default_rng([self._seed, turn]).permutation(self._num_tasks)
            piece = order[start : start + count - len(taken)]
            taken += piece.tolist()
            self._position += len(piece)
        return taken

    def state(self) -> FrontierState:
        """Return what `restore` needs."""
        return FrontierState(self._fingerprint, self._seed, self._position)

    def restore(self, state: FrontierState) -> str | None:
        """Go on where `state` stood; with other tasks begin anew and return a line that says so."""
        if state.fingerprint != self._fingerprint:
            return (
                "the checkpoint was written with another set of tasks: the model goes on, the tasks begin at the first"
            )
        if state.seed != self._seed:
            return f"the checkpoint used seed {state.seed}, this run {self._seed}: the tasks begin at the first"
        self._position = state.position
        return None
