"""What runs an episode, whichever way; beginning failed attempts again; seeds for full determinism."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ...agents.base import Generator, Sampling
from ...envs.task import Task
from .failures import TRANSIENT
from .trajectory import Failure, Trajectory

SeedFor = Callable[[str, int, int], int]

LONGEST_PAUSE_S = 30.0


class Executor(Protocol):
    """Runs one attempt at one task; algorithms never know which executor it was."""

    async def run(
        self, task: Task, attempt: int, generator: Generator, sampling: Sampling, seed_for: SeedFor | None = None
    ) -> Trajectory:
        """Run one episode to its end.

        Returns:
            The episode; one that failed says so, and never raises.

        Raises:
            asyncio.CancelledError: The caller cancelled; what the episode held is freed.
        """
        ...


async def retrying(
    executor: Executor,
    task: Task,
    attempt: int,
    generator: Generator,
    sampling: Sampling,
    seed_for: SeedFor | None = None,
    *,
    max_retries: int = 2,
    backoff_s: float = 0.5,
    first: Trajectory | None = None,
) -> Trajectory:
    """Run an episode, and begin it again, all afresh, while it fails for a reason that may pass.

    A dead engine is not asked again: the failure returns at once, so that the caller can move the task. Between two
    tries lies a random pause, at most `backoff_s` before the first repetition and twice as long before each further
    one, so that what fell down together does not come back together. It holds nothing meanwhile. Where environments
    keep failing, their pool's breaker makes the new try wait. Where `first` is given, that came of the first try.
    """
    earlier: list[Failure] = []
    trajectory = first
    while True:
        trajectory = trajectory or await executor.run(task, attempt, generator, sampling, seed_for)
        failure = trajectory.failure
        if failure is None or failure.kind not in TRANSIENT or len(earlier) >= max_retries:
            return replace(trajectory, earlier_failures=tuple(earlier)) if earlier else trajectory
        earlier.append(failure)
        trajectory = None
        await asyncio.sleep(pause_s(len(earlier), backoff_s))


def pause_s(num_failures: int, backoff_s: float) -> float:
    """Draw the pause after so many failures: between 0 and a bound that doubles each time ("full jitter")."""
    return random.uniform(0.0, min(backoff_s * 2 ** (num_failures - 1), LONGEST_PAUSE_S))


def stable_seed(task_id: str, attempt: int, turn: int, run_seed: int = 0) -> int:
    """Return a seed in [0, 2**63) that is the same in every process and on every machine."""
    name = f"{run_seed}\x00{task_id}\x00{attempt}\x00{turn}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1
