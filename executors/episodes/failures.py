"""From an exception to the kind of failure it is, by the stage of the episode; and how many failures stop a run."""

import traceback
from collections.abc import Sequence
from enum import StrEnum

from ...errors import EngineDeadError, EnvUnavailableError, GraderError, NoTurnError, RewardError, TrajectoryError
from .trajectory import Failure, FailureKind, Trajectory


class Stage(StrEnum):
    """What an episode spends its time on; the keys of `Trajectory.seconds` beside `total`."""

    ENV = "env"
    RENDER = "render"
    GENERATE = "generate"


# In each stage the first class that fits decides, and what fits none is that stage's own fault. An
# EngineError out of an environment is the environment's: the engine it asked is not the one that samples.
_KINDS: dict[Stage, tuple[tuple[type[Exception], FailureKind], ...]] = {
    Stage.ENV: (
        (GraderError, FailureKind.GRADER),
        (RewardError, FailureKind.REWARD),
        (EnvUnavailableError, FailureKind.ENV_UNAVAILABLE),
        (NoTurnError, FailureKind.NO_TURN),
        (TimeoutError, FailureKind.ENV_TIMEOUT),
        (Exception, FailureKind.ENV),
    ),
    Stage.RENDER: (
        (TrajectoryError, FailureKind.ENGINE),  # a completion that cannot be recorded: no logprobs
        (Exception, FailureKind.TEMPLATE),
    ),
    Stage.GENERATE: (
        (EngineDeadError, FailureKind.ENGINE_DEAD),
        (TimeoutError, FailureKind.ENGINE_TIMEOUT),
        (Exception, FailureKind.ENGINE),
    ),
}

TRANSIENT = frozenset(
    {
        FailureKind.ENV,
        FailureKind.ENV_TIMEOUT,
        FailureKind.REWARD,
        FailureKind.GRADER,
        FailureKind.ENGINE,
        FailureKind.ENGINE_TIMEOUT,
    }
)
"""Failures that another try may not meet. A dead engine is not among them: its tasks belong on another one. Nor is an
environment that could not be had: the attempt has waited for it as long as an episode may take."""


class EpisodeError(Exception):
    """Carries a failure from the place it came up in to the end of `run`; never leaves the executor."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(error: Exception, stage: Stage, turn: int) -> Failure:
    """Describe an error as a failure, with the place it was raised at."""
    kind = next(kind for kind_of, kind in _KINDS[stage] if isinstance(error, kind_of))
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
    return Failure(kind, f"{type(error).__name__}: {error}{place}", turn)


def check_failures(trajectories: Sequence[Trajectory], num_attempts: int, max_failed_fraction: float) -> None:
    """Stop a run of which too many attempts fail.

    Args:
        trajectories: With the failed ones among them.
        num_attempts: Those and the others.
        max_failed_fraction: How many may fail, of all.

    Raises:
        TrajectoryError: More than this share of them failed, or all.
    """
    failures = [t.failure for t in trajectories if t.failure is not None]
    if failures and (len(failures) > max_failed_fraction * num_attempts or len(failures) == num_attempts):
        raise TrajectoryError(
            f"{len(failures)} of {num_attempts} attempts of this step failed (--train.max_failed_fraction "
            f"{max_failed_fraction}); the first: {failures[0].kind.value}: {failures[0].message}"
        )
