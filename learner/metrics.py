"""Numbers that can be merged over micro-batches and ranks before they are divided."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Metric(Protocol):
    """One number in the making; two of a kind and a name can be merged."""

    def merge(self, other: "Metric") -> "Metric":
        """Return the metric of both parts together."""
        ...

    def value(self) -> float | None:
        """Return the number; None when nothing was counted."""
        ...


Metrics = dict[str, Metric]


@dataclass(frozen=True)
class Mean:
    """A mean over tokens or attempts."""

    total: float
    count: float

    def merge(self, other: Metric) -> "Mean":
        """Add both totals and counts."""
        assert isinstance(other, Mean)
        return Mean(self.total + other.total, self.count + other.count)

    def value(self) -> float | None:
        """Return total by count."""
        return self.total / self.count if self.count else None


@dataclass(frozen=True)
class Largest:
    """A maximum; None where there was nothing."""

    largest: float | None

    def merge(self, other: Metric) -> "Largest":
        """Keep the larger."""
        assert isinstance(other, Largest)
        known = [x for x in (self.largest, other.largest) if x is not None]
        return Largest(max(known, default=None))

    def value(self) -> float | None:
        """Return the maximum."""
        return self.largest


@dataclass(frozen=True)
class EffectiveSize:
    """Kish's effective sample size of weights as a share of their number: (sum w)^2 / (n sum w^2)."""

    total: float
    total_of_squares: float
    count: float

    def merge(self, other: Metric) -> "EffectiveSize":
        """Add all three sums."""
        assert isinstance(other, EffectiveSize)
        return EffectiveSize(
            self.total + other.total, self.total_of_squares + other.total_of_squares, self.count + other.count
        )

    def value(self) -> float | None:
        """Return the share; 1 for equal weights, 0 when all are 0."""
        if not self.count:
            return None
        return self.total**2 / (self.count * self.total_of_squares) if self.total_of_squares else 0.0


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations; merged without the cancellation of plain sums of squares (Chan)."""

    count: int
    mean: float
    deviations: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Moments":
        """Take the moments of numbers; of equal ones the deviations are exactly 0."""
        if not numbers:
            return cls(0, 0.0, 0.0)
        shifted = [number - numbers[0] for number in numbers]
        shift = math.fsum(shifted) / len(shifted)
        return cls(len(numbers), numbers[0] + shift, math.fsum((number - shift) ** 2 for number in shifted))

    def merge(self, other: "Moments") -> "Moments":
        """Return the moments of both parts together."""
        count = self.count + other.count
        if not self.count or not other.count:
            return self if self.count else other
        gap = other.mean - self.mean
        between = gap * gap * self.count * other.count / count
        return Moments(count, self.mean + gap * other.count / count, self.deviations + other.deviations + between)


@dataclass(frozen=True)
class ExplainedVariance:
    """The share of the targets' variance that predictions explain: 1 - Var(target - prediction) / Var(target)."""

    targets: Moments
    errors: Moments

    def merge(self, other: Metric) -> "ExplainedVariance":
        """Merge both moments."""
        assert isinstance(other, ExplainedVariance)
        return ExplainedVariance(self.targets.merge(other.targets), self.errors.merge(other.errors))

    def value(self) -> float | None:
        """Return the share; below 0 where a constant would predict better, None where targets do not vary."""
        return 1 - self.errors.deviations / self.targets.deviations if self.targets.deviations else None


def merge(parts: Iterable[Metrics]) -> Metrics:
    """Merge the metrics of micro-batches or ranks, name by name."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def values(metrics: Metrics) -> dict[str, float]:
    """Return the numbers, without those that nothing was counted for."""
    return {name: value for name, metric in metrics.items() if (value := metric.value()) is not None}
