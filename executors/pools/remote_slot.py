"""A Ray actor that hosts environments, or the place for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from ...envs.options import EnvPoolOptions
from .base import HostCounts, States


@dataclass
class Slot:
    """A worker, or the place for one."""

    index: int
    actor: Any = None  # Any: Ray's handles have no types
    is_up: bool = False
    is_gone: bool = False  # and not restarted any more
    generation: int = 0
    num_envs: int = 0
    end: str = ""  # how the last worker ended
    kept: States = field(default_factory=dict)
    has_kept: bool = False  # that this worker was given what was kept
    keepers: set[str] = field(default_factory=set)  # names under which classes in this worker keep something
    counts: HostCounts = field(default_factory=HostCounts)


def unschedulable(slot: Slot, options: EnvPoolOptions, resources: Mapping[str, float]) -> str:
    """Say why a worker did not start: what it wants, and what the cluster has."""
    wanted = {"CPU": options.num_cpus, **resources}
    whole, free = ray.cluster_resources(), ray.available_resources()
    shown = ", ".join(f"{name} {free.get(name, 0):g} of {whole.get(name, 0):g} free" for name in wanted)
    return (
        f"environment worker {slot.index} of {options.num_workers} did not start within --env_pool.start_timeout_s "
        f"{options.start_timeout_s:g}: it wants {wanted}, and the cluster has {shown}; start nodes that have "
        "it, or change --env_pool.num_workers, --env_pool.num_cpus or --env_pool.resources"
    )
