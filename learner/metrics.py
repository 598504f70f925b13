"""Numbers that can be merged over micro-batches and ranks before they are divided."""

from collections.abc import Iterable
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
