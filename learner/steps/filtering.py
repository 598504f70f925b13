"""Dynamic filtering: which groups of a step have something to teach (DAPO, arXiv:2503.14476)."""

# A attempts

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...errors import ConfigError, TrajectoryError
from ...executors.rollouts.buffer import Group
from ..options import AlgoOptions

VERDICTS = ("kept", "without_spread", "out_of_range", "without_valid")


@dataclass(frozen=True)
class Filtered:
    """What is left of a step's groups.

    Attributes:
        is_valid_A: bool, for the attempts of all groups in their order; those of groups that were left out are not.
        is_kept: For each group, whether it stays.
        metrics: How many groups stay, and why the others do not.
    """

    is_valid_A: NDArray[np.bool_]
    is_kept: tuple[bool, ...]
    metrics: dict[str, float]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to learn from; the step is then to be skipped, aloud."""
        return not self.is_valid_A.any()


def check_filtering(options: AlgoOptions) -> None:
    """Refuse bounds that nothing lies between, and bounds without the filter.

    Raises:
        ConfigError: It names the option.
    """
    bounds = options.dynamic_filtering_range
    if bounds is None:
        return
    if not options.dynamic_filtering_enable:
        raise ConfigError("--algo.dynamic_filtering_range does nothing without --algo.dynamic_filtering_enable")
    if not bounds[0] < bounds[1]:
        raise ConfigError(
            f"--algo.dynamic_filtering_range wants a lower and a higher bound, got {bounds[0]} and {bounds[1]}"
        )


def filter_groups(
    groups: Sequence[Group], options: AlgoOptions, rewards_A: ArrayLike, is_valid_A: ArrayLike
) -> Filtered:
    """Keep the groups whose valid attempts' scores differ and, where a range is given, have a mean strictly within.

    "Differ" is max > min, exactly (OpenRLHF has only the range, 0 to 1 by default, so that any group of rewards that
    are not 0 or 1 passes, and one with a mean below 0 never does). An attempt counts with its score, 0.0 included,
    or where it has none with its reward. One valid attempt alone has nobody to differ from.

    Args:
        groups: A step's.
        options: The user's; with the filter off everything stays.
        rewards_A: For attempts without a score: before clipping and penalties, which say nothing about the task.
        is_valid_A: Which attempts count at all.
    """
    valid_A, known_A = np.asarray(is_valid_A, bool), np.asarray(rewards_A, np.float64)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    if not len(trajectories) == len(valid_A) == len(known_A):
        raise TrajectoryError(
            f"one reward and validity for each of {len(trajectories)} attempts wanted, got {len(known_A)} and "
            f"{len(valid_A)}"
        )
    scores_A = np.array([r if t.score is None else t.score for t, r in zip(trajectories, known_A, strict=True)])
    lengths = [len(group.trajectories) for group in groups]
    group_A = np.repeat(np.arange(len(groups)), lengths)
    verdicts = [_verdict(scores_A[valid_A & (group_A == group)], options) for group in range(len(groups))]
    is_kept = np.array([verdict == "kept" for verdict in verdicts], bool)
    metrics = {f"groups/{verdict}": float(verdicts.count(verdict)) for verdict in VERDICTS}
    return Filtered(
        is_valid_A=valid_A & np.repeat(is_kept, lengths),
        is_kept=tuple(is_kept.tolist()),
        metrics=metrics if options.dynamic_filtering_enable else {},
    )


def _verdict(scores: NDArray[np.float64], options: AlgoOptions) -> str:
    bounds = options.dynamic_filtering_range
    if not len(scores):
        return "without_valid"
    if not options.dynamic_filtering_enable:
        return "kept"
    if not scores.max() > scores.min():
        return "without_spread"
    if bounds is not None and not bounds[0] < scores.mean() < bounds[1]:
        return "out_of_range"
    return "kept"
