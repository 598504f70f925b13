"""Findings, and the registry of the checks that make them."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from ...registry import Registry
from .folder import Run


class Stage(StrEnum):
    """Where in the pipeline something is wrong, in the order of the data's way."""

    TASKS = "tasks"
    ROLLOUT = "rollout"
    ENVIRONMENT = "environment"
    REWARD = "reward"
    ADVANTAGES = "advantages"
    OPTIMISER = "optimiser"
    WEIGHT_SYNC = "weight sync"
    ENGINE = "engine"


class Severity(StrEnum):
    """How much it matters, worst first."""

    PROBLEM = "problem"  # explains by itself why nothing is learnt, or will end the run
    WARNING = "warning"  # costs learning
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        stage: Where.
        severity: How much it matters.
        title: What, in one line.
        evidence: Sentences with the numbers and steps that say so.
        what_to_do: The next thing to try.
    """

    stage: Stage
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    what_to_do: str


@dataclass(frozen=True)
class Check:
    """Looks for one disease.

    Attributes:
        needs: What the folder must hold for it, as `Run.knows` has it; the check does not run without.
        find: Return the finding, or None where all is well.
    """

    needs: tuple[str, ...]
    find: Callable[[Run], Finding | None]


CHECKS: Registry[Check] = Registry("check")
"""By name; a new check is a function in one of the `checks_*` modules under `@check(...)`."""


def check(*needs: str) -> Callable[[Callable[[Run], Finding | None]], Callable[[Run], Finding | None]]:
    """Register a function as the check of its name, with what the folder must hold for it."""

    def add(find: Callable[[Run], Finding | None]) -> Callable[[Run], Finding | None]:
        CHECKS.register(find.__name__)(Check(needs, find))
        return find

    return add
