"""One metric over the steps that know it: where it began, where it ended, whether it grew."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

QUARTER = 4
"""Early and late are the first and the last quarter: long enough to average noise out, apart enough to see a change."""

SIGMAS = 3.0
"""A change smaller than this many standard errors is noise; of 30 checks fewer than one in ten cries wolf by chance."""

SHORTEST_TREND = 8
"""Steps below which nothing is said about a trend: two per quarter are the fewest that have a spread."""


@dataclass(frozen=True)
class Series:
    """Values by step; steps that do not know the metric are absent, not 0."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def early(self) -> float:
        """The median of the first quarter."""
        return float(np.median(self.values[: self._quarter]))

    @property
    def late(self) -> float:
        """The median of the last quarter."""
        return float(np.median(self.values[-self._quarter :]))

    @property
    def late_steps(self) -> str:
        """Which steps are late, for eyes."""
        return span(self.steps[-self._quarter :])

    @property
    def median(self) -> float:
        """Over all steps."""
        return float(np.median(self.values))

    @property
    def mean(self) -> float:
        """Over all steps."""
        return float(np.mean(self.values))

    @property
    def change(self) -> float:
        """Mean of the last quarter less that of the first."""
        return float(np.mean(self.values[-self._quarter :]) - np.mean(self.values[: self._quarter]))

    @cached_property
    def error(self) -> float:
        """Standard error of `change`; infinite where there are too few steps for one."""
        if len(self) < SHORTEST_TREND:
            return float("inf")
        parts = (self.values[: self._quarter], self.values[-self._quarter :])
        return float(np.sqrt(sum(np.var(part, ddof=1) / len(part) for part in parts)))

    @property
    def rises(self) -> bool:
        """Whether it ends above where it began, by more than noise."""
        return self.change > SIGMAS * self.error

    @property
    def falls(self) -> bool:
        """Whether it ends below where it began, by more than noise."""
        return -self.change > SIGMAS * self.error

    @property
    def rank_correlation(self) -> float:
        """Spearman's, with the step: 1 where each value exceeds the one before, about 0 for noise."""
        return rank_correlation(self.steps, self.values)

    def between(self, first: int, last: float) -> "Series":
        """Return the part with first <= step < last."""
        kept = [i for i, step in enumerate(self.steps) if first <= step < last]
        return Series(tuple(self.steps[i] for i in kept), tuple(self.values[i] for i in kept))

    def where(self, lowest: float) -> tuple[int, ...]:
        """Return the steps whose value is at least this."""
        return tuple(step for step, value in zip(self.steps, self.values, strict=True) if value >= lowest)

    @property
    def _quarter(self) -> int:
        return max(1, len(self) // QUARTER)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where one of them does not vary."""
    ranks = [_ranks(np.asarray(values, np.float64)) for values in (a, b)]
    if len(a) < 2 or any(rank.std() == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks, the mean of them where values are equal."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")) / 2


def span(steps: Sequence[int], shown: int = 6) -> str:
    """Return steps for eyes: 'step 3', 'steps 3-9', or the first few of them."""
    if not steps:
        return "no step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]}-{steps[-1]}"
    more = f" and {len(steps) - shown} more" if len(steps) > shown else ""
    return f"steps {', '.join(map(str, steps[:shown]))}{more}"
