"""What a look at a whole run gives: every check that has what it needs, and what the others lacked."""

from dataclasses import dataclass

# Importing them fills CHECKS.
from . import checks_correction, checks_episodes, checks_lengths, checks_mismatch, checks_optimiser, checks_reward
from .finding import CHECKS, Finding, Severity, Stage
from .folder import Run

CHECK_MODULES = (
    checks_correction,
    checks_episodes,
    checks_lengths,
    checks_mismatch,
    checks_optimiser,
    checks_reward,
)


@dataclass(frozen=True)
class Diagnosis:
    """What a look at a run gave.

    Attributes:
        findings: By the name of the check, worst first, then in the order of stages.
        not_known: What each check lacked that could not run, by the name of the check.
        num_looked: Checks that ran.
    """

    findings: dict[str, Finding]
    not_known: dict[str, tuple[str, ...]]
    num_looked: int


def diagnose(run: Run) -> Diagnosis:
    """Run every check that has what it needs."""
    findings: dict[str, Finding] = {}
    not_known: dict[str, tuple[str, ...]] = {}
    for name in CHECKS:
        lacking = tuple(need for need in CHECKS[name].needs if not run.knows(need))
        if lacking:
            not_known[name] = lacking
        elif (finding := CHECKS[name].find(run)) is not None:
            findings[name] = finding
    return Diagnosis(dict(sorted(findings.items(), key=_rank)), not_known, len(list(CHECKS)) - len(not_known))


def _rank(item: tuple[str, Finding]) -> tuple[int, int]:
    return list(Severity).index(item[1].severity), list(Stage).index(item[1].stage)
