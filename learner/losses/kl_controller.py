"""A coefficient of the KL that follows a target."""

import math
from dataclasses import dataclass, replace

from ...errors import ConfigError, LearnerError
from ..options import KlOptions

LARGEST_ERROR = 0.2
"""The relative error that counts, either way."""


@dataclass(frozen=True)
class KlController:
    """Raise the coefficient while the KL is above its target, lower it below (arXiv:1909.08593).

    `coef` is all of its state. Like OpenRLHF and TRL, by `num_attempts / horizon` of the relative error, clipped to
    +-0.2; but never by more than the error itself. There the coefficient turns negative, and rewards distance, when
    an update has more than 5 horizons of attempts.

    Attributes:
        coef: Weight of the KL.
        target: KL per action token to come near; None keeps the coefficient fixed.
        horizon: Attempts over which the coefficient adapts.
    """

    coef: float
    target: float | None = None
    horizon: int = 10_000

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ConfigError(f"the coefficient of the KL must be finite and not negative, got {self.coef}")
        if self.target is not None and not 0 < self.target < math.inf:
            raise ConfigError(f"--algo.kl.target must be positive, got {self.target}")
        if self.horizon < 1:
            raise ConfigError(f"--algo.kl.horizon must be at least 1 attempt, got {self.horizon}")

    def updated(self, kl: float, num_attempts: int) -> "KlController":
        """Return the controller after a step of so many attempts with this KL (mean over action tokens).

        Raises:
            LearnerError: The KL is NaN.
        """
        if self.target is None:
            return self
        if math.isnan(kl):
            raise LearnerError("the KL to the reference is NaN; its coefficient cannot follow it")
        error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        return replace(self, coef=self.coef * (1 + error * min(1.0, num_attempts / self.horizon)))


def resumed_coef(options: KlOptions, saved: float) -> float:
    """Return the coefficient of a run that goes on: where it follows a target the saved one, else the user's.

    A run that had no KL before begins with the user's too.
    """
    return saved if options.target is not None and saved > 0 else options.init_coef
