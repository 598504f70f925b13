"""An environment with a tool: count what lies on several shelves, looking at all of them in one turn.

turngym envs check examples/stock_count.py:StockCount
turngym train --agent env:examples/stock_count.py:StockCount --agent_args.num_shelves 4 ...
"""

import random
import re
from collections.abc import Sequence

from turngym.envs import LazyTasks, Split, Task, ToolEnv
from turngym.envs.task import seeded_tasks

ITEMS = ("apples", "bolts", "candles", "drums")


class Shelves:
    """The tools of one episode: the public methods, over the shelves of its task."""

    def __init__(self, task: Task) -> None:
        self._counts: dict[str, dict[str, int]] = task.data["shelves"]
        self.num_looks = 0

    def look(self, shelf: str) -> dict[str, int]:
        """Say what lies on a shelf.

        Args:
            shelf: Its name, such as S1.
        """
        if shelf not in self._counts:
            raise ValueError(f"there is no shelf {shelf!r}; there are {', '.join(self._counts)}")
        self.num_looks += 1
        return self._counts[shelf]


class StockCount(ToolEnv):
    """How many are there in all? Reward 1 for the right number, if the shelves were looked at.

    Args:
        num_shelves: How many shelves there are.
        max_turns: Answers of the model, the final one included.
    """

    def __init__(self, num_shelves: int = 3, max_turns: int = 4) -> None:
        super().__init__(tools=Shelves, max_turns=max_turns)
        self._num_shelves = num_shelves

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return endless tasks that are drawn from their seeds."""
        seeds = seeded_tasks("StockCount", split, seed)
        return LazyTasks(len(seeds), lambda index: self._drawn(seeds[index]))

    async def reward(self, answer: str) -> float:
        """Compare the last number of the answer."""
        numbers = re.findall(r"-?\d+", answer)
        is_right = bool(numbers) and int(numbers[-1]) == self.task.label
        return float(is_right and self.state(Shelves).num_looks > 0)

    def _drawn(self, task: Task) -> Task:
        draw = random.Random(task.seed)
        names = [f"S{number + 1}" for number in range(self._num_shelves)]
        shelves = {name: {item: draw.randrange(20) for item in ITEMS} for name in names}
        item = draw.choice(ITEMS)
        question = (
            f"Task {task.seed}: how many {item} lie on the shelves {', '.join(names)} together? "
            "Look at every shelf, all in one message if you like. Then answer with the number only."
        )
        total = sum(shelf[item] for shelf in shelves.values())
        return Task(task.id, prompt=question, label=total, seed=task.seed, data={"shelves": shelves})
