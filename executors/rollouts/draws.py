"""Where rollouts get their tasks: each one drawn under a number of its own, and given back when nothing came of it."""

from dataclasses import dataclass
from typing import Protocol

from ...envs.task import Task


@dataclass(frozen=True)
class Draw:
    """One task on its way through a run; `serial` counts draws, since a task comes once in every pass."""

    serial: int
    task: Task


class TaskSource(Protocol):
    """Hands out tasks; the learner implements it by its frontier."""

    def draw(self) -> Draw | None:
        """Return the next task, those that were given back first; None when there is none left."""
        ...

    def give_back(self, draw: Draw) -> None:
        """Take back a task that was not used; it is drawn again."""
        ...

    @property
    def num_left(self) -> int:
        """Tasks that can still be drawn."""
        ...
