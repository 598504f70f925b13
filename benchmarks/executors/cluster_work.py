"""What a simulated cluster works on: attempts with a long tail of lengths, in turns that wait for their environment."""

import heapq
from dataclasses import dataclass

import numpy as np

from turngym.envs.task import Task
from turngym.executors.rollouts.draws import Draw

NO_END = 10**9  # batches and tasks: a run is cut off in the middle of its work, not at its end


@dataclass(eq=False)
class Episode:
    """One attempt on its way.

    Attributes:
        tokens: It samples, in equal turns.
        waits_s: What its environment takes before each turn.
        turn: Turns that are complete.
        oldest, newest: Versions of its first and its last token; None before there is one.
        cached: Version under which the prefix cache holds its context.
    """

    number: int
    tokens: int
    waits_s: list[float]
    turn: int = 0
    oldest: int | None = None
    newest: int | None = None
    cached: int | None = None

    @property
    def turn_ends(self) -> tuple[int, int]:
        """The tokens sampled before this turn and after it."""
        return self.turn * self.tokens // len(self.waits_s), (self.turn + 1) * self.tokens // len(self.waits_s)

    @property
    def is_over(self) -> bool:
        """Whether all turns are complete."""
        return self.turn == len(self.waits_s)


@dataclass(frozen=True)
class Workload:
    """Log-normal numbers of tokens, partly the task's and partly the attempt's, cut at the most that may be sampled."""

    median_tokens: float = 8000.0
    task_sigma: float = 0.6
    attempt_sigma: float = 0.7
    max_tokens: int = 32_768
    mean_turns: float = 3.0
    prompt_tokens: int = 500
    observation_tokens: int = 200
    env_median_s: float = 1.0
    env_sigma: float = 1.0

    def episodes(self, serial: int, count: int) -> list[Episode]:
        """Return the attempts at one task; they are the same whenever it comes."""
        rng = np.random.default_rng([7, serial])
        spread = self.task_sigma * rng.standard_normal() + self.attempt_sigma * rng.standard_normal(count)
        tokens = np.clip(self.median_tokens * np.exp(spread), 64, self.max_tokens).astype(int).tolist()
        turns = np.minimum(rng.geometric(1 / self.mean_turns, count), 32)
        waits = self.env_median_s * np.exp(self.env_sigma * rng.standard_normal(int(turns.sum())))
        waits_s = np.split(waits, np.cumsum(turns)[:-1])
        return [Episode(number, tokens[number], waits_s[number].tolist()) for number in range(count)]


class EndlessTasks:
    """Tasks named by their serials."""

    num_left = NO_END

    def __init__(self) -> None:
        self._next = 0
        self._given_back: list[int] = []

    def draw(self) -> Draw:
        """Return the next task, those that were given back first."""
        if self._given_back:
            serial = heapq.heappop(self._given_back)
        else:
            serial, self._next = self._next, self._next + 1
        return Draw(serial, Task(id=str(serial)))

    def give_back(self, draw: Draw) -> None:
        """Take back a task that was not used."""
        heapq.heappush(self._given_back, draw.serial)
