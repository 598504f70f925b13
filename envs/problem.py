"""What a conformance check has found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with an environment.

    Attributes:
        check: Short name of the check that found it.
        severity: An `error` breaks runs; a `warning` is worth a look.
        what: What is wrong.
        how: How to mend it.
    """

    check: str
    severity: Literal["error", "warning"]
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.severity} [{self.check}] {self.what}\n    mend: {self.how}"
