"""Learning-rate schedules: pure functions from a step to the share of the peak rate.

Each gives the numbers of transformers' scheduler of the same name, in which step 0 of a warm-up has rate 0:
an optimiser's first update should therefore ask for step 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError
from ..registry import Registry

SCHEDULES: Registry[Callable[[float, float], float]] = Registry("learning-rate schedule")
"""Functions of (progress after the warm-up from 0 to 1, lowest share) to the share of the peak rate."""


@SCHEDULES.register("cosine_with_min_lr")
def cosine_with_min_lr(progress: float, min_ratio: float) -> float:
    """Fall along half a cosine to the lowest share (SGDR, arXiv:1608.03983, without restarts)."""
    return min_ratio + (1 - min_ratio) * 0.5 * (1 + math.cos(math.pi * progress))


@SCHEDULES.register("constant_with_warmup")
def constant_with_warmup(progress: float, min_ratio: float) -> float:
    """Stay at the peak."""
    return 1.0


@SCHEDULES.register("linear")
def linear(progress: float, min_ratio: float) -> float:
    """Fall in a straight line to 0; the lowest share is not used, as in transformers."""
    return 1 - progress


@dataclass(frozen=True)
class Schedule:
    """The share of the peak learning rate at each step of a run.

    Attributes:
        name: One of `SCHEDULES`.
        num_steps: Optimiser steps of the run; past the end the last value holds.
        num_warmup_steps: Steps of the straight line from 0 to the peak.
        min_ratio: Lowest share, for the schedules that have one.
    """

    name: str
    num_steps: int
    num_warmup_steps: int = 0
    min_ratio: float = 0.0

    def __post_init__(self) -> None:
        SCHEDULES[self.name]
        if not 0 <= self.min_ratio <= 1:
            raise ConfigError(f"the lowest share of the learning rate must lie in [0, 1], got {self.min_ratio}")
        if self.num_warmup_steps < 0 or self.num_steps < 0:
            raise ConfigError(f"steps must not be negative: {self.num_steps} with {self.num_warmup_steps} of warm-up")

    def factor(self, step: int) -> float:
        """Return the share of the peak rate at this step."""
        if step < self.num_warmup_steps:
            return step / self.num_warmup_steps
        progress = (step - self.num_warmup_steps) / max(1, self.num_steps - self.num_warmup_steps)
        return SCHEDULES[self.name](min(1.0, progress), self.min_ratio)


def num_warmup_steps(num_steps: int, ratio: float) -> int:
    """Return the steps of warm-up for this share of all steps, rounded up as in transformers."""
    return math.ceil(num_steps * ratio)
