"""Where episodes branch, and what the attempts that come of it share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import ConfigError

Branch = tuple[int, int]
"""The attempt that another one branched off, and the last turn that both have."""


@dataclass(frozen=True)
class Branching:
    """After which turns an episode forks, and into how many. The leaves of the tree are attempts.

    Attributes:
        turns: Counted from 0, in order. None: episodes do not branch.
        factor: Episodes that come of one.
    """

    turns: tuple[int, ...] = ()
    factor: int = 2

    def __post_init__(self) -> None:
        if any(turn < 0 for turn in self.turns) or any(later <= turn for turn, later in pairwise(self.turns)):
            raise ConfigError(f"turns to branch at must rise from 0 on, got {' '.join(map(str, self.turns))}")
        if self.factor < 2:
            raise ConfigError(f"an episode that branches goes on as 2 or more, got {self.factor}")

    @property
    def num_leaves(self) -> int:
        """Attempts that come of one tree."""
        return int(self.factor ** len(self.turns))

    def trees(self, attempts: Sequence[int]) -> list[tuple[int, ...]]:
        """Put attempts together whose numbers belong to one tree.

        Of a tree that is not whole, because some of its attempts are known already, each attempt is by itself.
        """
        found: dict[int, list[int]] = {}
        for attempt in sorted(attempts):
            found.setdefault(attempt // self.num_leaves, []).append(attempt)
        trees: list[tuple[int, ...]] = []
        for numbers in found.values():
            trees += [tuple(numbers)] if len(numbers) == self.num_leaves else [(number,) for number in numbers]
        return trees


def shared_turn(branches: Mapping[int, Branch | None], one: int, other: int) -> int | None:
    """Return the last turn that two attempts have in common, -1 for the first prompt; None: they are independent.

    Args:
        branches: What each attempt branched off.
        one: An attempt; one that is the other has all its turns in common with itself, and is not to be asked for.
        other: Another.
    """
    mine, its = _origins(branches, one), _origins(branches, other)
    shared = [min(mine[origin], its[origin]) for origin in mine.keys() & its.keys()]
    return int(max(shared)) if shared else None


def _origins(branches: Mapping[int, Branch | None], attempt: int) -> dict[int, float]:
    """Return the attempts that one descends from, itself included, with the last turn it has of each."""
    origins = {attempt: float("inf")}
    while (branch := branches.get(attempt)) is not None:
        turn = min(origins[attempt], branch[1])
        attempt = branch[0]
        origins[attempt] = turn
    return origins
