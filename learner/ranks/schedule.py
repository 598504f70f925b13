"""Learning-rate schedules: pure functions from a step to the share of the peak rate, those of transformers.

Step 0 of a warm-up has rate 0: an optimiser's first update should therefore ask for step 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import ConfigError, UnknownNameError
from ...registry import nearest

DECAY_SHARE = 0.1
"""Share of all steps over which warmup_stable_decay falls (MiniCPM, arXiv:2404.06395, has a tenth)."""

SCHEDULES: dict[str, str | None] = {
    "constant": None,
    "constant_with_warmup": None,
    "cosine": None,
    "cosine_warmup_with_min_lr": "min_lr_rate",
    "cosine_with_min_lr": "min_lr_rate",
    "cosine_with_restarts": None,
    "inverse_sqrt": None,
    "linear": None,
    "polynomial": "lr_end",
    "warmup_stable_decay": "min_lr_ratio",
}
"""transformers' schedulers that only look at the step, and the name under which each takes the lowest share."""

OBSERVERS = ("reduce_lr_on_plateau", "greedy")
"""Those that look at a metric; a run that is gone on with could not know where such a one stood."""


@dataclass(frozen=True)
class Schedule:
    """The share of the peak learning rate at each step of a run.

    Attributes:
        name: A scheduler of transformers, one of `SCHEDULES`.
        num_steps: Optimiser steps of the run; past the end the last value holds.
        num_warmup_steps: Steps of the straight line from 0 to the peak.
        min_ratio: Lowest share, for the schedules that have one.
    """

    name: str
    num_steps: int
    num_warmup_steps: int = 0
    min_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.name in OBSERVERS:
            raise ConfigError(
                f"learning-rate schedule {self.name!r} follows a metric of the run, and here the rate follows the step "
                "alone, so that a run can be gone on with; use cosine_with_min_lr or another"
            )
        if self.name not in SCHEDULES:
            raise UnknownNameError(f"unknown learning-rate schedule {self.name!r}.{nearest(self.name, SCHEDULES)}")
        if not 0 <= self.min_ratio <= 1:
            raise ConfigError(f"the lowest share of the learning rate must lie in [0, 1], got {self.min_ratio}")
        if self.name == "polynomial" and self.min_ratio == 1:
            raise ConfigError("a polynomial that ends at its peak falls nowhere; use constant_with_warmup")
        if self.num_warmup_steps < 0 or self.num_steps < 0:
            raise ConfigError(f"steps must not be negative: {self.num_steps} with {self.num_warmup_steps} of warm-up")

    def factor(self, step: int) -> float:
        """Return the share of the peak rate at this step."""
        return float(self._factor(min(step, max(self.num_steps, self.num_warmup_steps))))

    @cached_property
    def _factor(self) -> Callable[[int], float]:
        """The function inside transformers' scheduler of an optimiser whose peak rate is 1."""
        import torch
        from transformers import get_scheduler

        options: dict[str, Any] = {}
        lowest = SCHEDULES[self.name]
        if lowest is not None:
            options[lowest] = self.min_ratio
        num_steps = max(self.num_steps, self.num_warmup_steps + 1)  # polynomial divides by the steps after the warm-up
        if self.name == "warmup_stable_decay":
            options["num_decay_steps"] = min(math.ceil(num_steps * DECAY_SHARE), num_steps - self.num_warmup_steps)
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        scheduler: Any = get_scheduler(self.name, optimizer, self.num_warmup_steps, num_steps, options)
        function: Callable[[int], float] = scheduler.lr_lambdas[0]
        return function


def num_warmup_steps(num_steps: int, ratio: float) -> int:
    """Return the steps of warm-up for this share of all steps, rounded up as in transformers."""
    return math.ceil(num_steps * ratio)
