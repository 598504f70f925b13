"""From rewards to one advantage per action token."""

from . import baselines, critic, distill  # noqa: F401  # they register the estimators
from .base import ESTIMATORS, AdvantageInputs, Advantages
from .credit import relative, turn_returns
from .estimating import estimate
from .moments import Groups, group_statistics, statistics, whitened
from .needs import CREDITS, NEEDS_GROUP, NEEDS_TEACHER, NEEDS_VALUES, check_credit
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
    "check_credit",
    "estimate",
    "group_statistics",
    "penalty_to_go",
    "relative",
    "statistics",
    "turn_returns",
    "whitened",
]
