"""Tasks: what an episode is about, and lists of them too long to hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from .messages import Message

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class Task:
    """One thing to be done; an environment finds it in `options["task"]` at `reset`.

    Attributes:
        id: Stable and unique within its set; groups, filters and resumes go by it.
        prompt: Text or messages to show, where the task comes from a dataset.
        label: The expected answer; kept from the model.
        seed: For environments that draw their own task: the seed to draw it with.
        data: Whatever else belongs to it (further dataset columns, difficulty, metadata).
    """

    id: str
    prompt: str | list[Message] | None = None
    label: Any = None  # Any: datasets hold labels of every type
    seed: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class LazyTasks(Sequence[Task]):
    """`size` tasks made on demand by `make(index)`: nothing is held, any index is cheap.

    Attributes:
        is_endless: They are drawn from seeds, and their number means nothing; a mixture does not wait for them all.
    """

    def __init__(self, size: int, make: Callable[[int], Task], *, is_endless: bool = False) -> None:
        self.is_endless = is_endless
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"task {index} of {self._size}")
        return self._make(index % self._size)

    def __iter__(self) -> Iterator[Task]:
        return (self._make(index) for index in range(self._size))


# Seeds of the two splits never meet, whatever the run's seed: evaluation tasks are held out by construction.
EVAL_SEED_OFFSET = 1 << 30


def seeded_tasks(name: str, split: Split, seed: int, size: int = 100_000) -> LazyTasks:
    """Tasks that are nothing but a seed, for environments that draw their own; the splits are disjoint.

    Train tasks have seeds below 2**30, evaluation tasks at or above it.
    """
    offset = EVAL_SEED_OFFSET if split == "eval" else 0

    def make(index: int) -> Task:
        task_seed = offset + (seed * 1_000_003 + index) % EVAL_SEED_OFFSET
        return Task(id=f"{name}/{split}/{task_seed}", seed=task_seed)

    return LazyTasks(size, make, is_endless=True)
