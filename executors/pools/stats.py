"""How a pool of environments stands, and what of it goes into a step's metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from .base import HostCounts
from .breaker import BreakerState
from .family import FamilyStats


@dataclass(frozen=True)
class PoolStats:
    """One pool at one moment; counts are since it was made.

    Attributes:
        families: By name.
        counts: Of all that host its environments.
        num_close_failures: Environments whose `close` failed.
    """

    families: Mapping[str, FamilyStats]
    counts: HostCounts
    num_close_failures: int = 0


def pool_metrics(pools: Sequence[PoolStats]) -> dict[str, float]:
    """Return the pools of all rollout actors as numbers: `env_pool/NAME` and `env_pool/FAMILY/NAME`.

    Numbers of calls, environments and seconds are sums, latencies and shares of errors are means over pools that know
    them, weighted by their calls. `breakers_open` counts pools whose breaker is not closed; a limit is the smallest.
    """
    metrics = {
        f"env_pool/{field.name}": float(sum(getattr(pool.counts, field.name) for pool in pools))
        for field in fields(HostCounts)
    }
    metrics["env_pool/num_close_failures"] = float(sum(pool.num_close_failures for pool in pools))
    for name in sorted({name for pool in pools for name in pool.families}):
        metrics |= _family_metrics(f"env_pool/{name}", [p.families[name] for p in pools if name in p.families])
    return metrics


def _family_metrics(prefix: str, parts: Sequence[FamilyStats]) -> dict[str, float]:
    sums = ("running", "waiting", "num_calls", "num_failures", "num_lost", "num_opened")
    metrics = {f"{prefix}/{name}": float(sum(getattr(part, name) for part in parts)) for name in sums}
    metrics[f"{prefix}/breakers_open"] = float(sum(part.breaker is not BreakerState.CLOSED for part in parts))
    limits = [part.limit for part in parts if part.limit is not None]
    if limits:
        metrics[f"{prefix}/limit"] = min(limits)
    for name in ("latency_s", "error_rate"):
        known = [(getattr(part, name), part.num_calls) for part in parts if getattr(part, name) is not None]
        if total := sum(count for _, count in known):
            metrics[f"{prefix}/{name}"] = sum(value * count for value, count in known) / total
    return metrics
