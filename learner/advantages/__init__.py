"""From rewards to one advantage per action token."""

from . import baselines, critic, distill  # registers the estimators
from .base import ESTIMATORS, AdvantageInputs, Advantages
from .needs import CREDITS, NEEDS_GROUP, NEEDS_TEACHER, NEEDS_VALUES, check_credit
from .estimating import estimate
from .credit import relative, turn_returns
from .moments import Groups, clip_rewards, group_statistics, statistics, whitened
from .steps import penalty_to_go

__all__ = [
    "CREDITS",
    "ESTIMATORS",
    "NEEDS_GROUP",
    "NEEDS_TEACHER",
    "NEEDS_VALUES",
    "AdvantageInputs",
    "Advantages",
    "Groups",
    "baselines",
    "check_credit",
    "clip_rewards",
    "critic",
    "distill",
    "estimate",
    "group_statistics",
    "penalty_to_go",
    "relative",
    "statistics",
    "turn_returns",
    "whitened",
]
