"""How many of some problems are solved within k tries, estimated from n tries at each (arXiv:2107.03374)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ConfigError


@dataclass(frozen=True)
class Tries:
    """The tries at one problem, and how many of them solved it."""

    num_tries: int
    num_solved: int

    def __post_init__(self) -> None:
        if not 0 <= self.num_solved <= self.num_tries:
            raise ConfigError(f"of {self.num_tries} tries at one problem {self.num_solved} cannot have solved it")

    def pass_at(self, k: int) -> float:
        """Return the chance that k of the tries, drawn without putting back, hold one that solved it.

        Raises:
            ConfigError: There are fewer than k tries, and nothing is known of more.
        """
        if not 1 <= k <= self.num_tries:
            raise ConfigError(
                f"pass@{k} is not defined for a problem with {self.num_tries} tries: give "
                "--eval.n_samples_per_prompt as many, or ask for a smaller k"
            )
        return 1.0 - math.comb(self.num_tries - self.num_solved, k) / math.comb(self.num_tries, k)


def check_tries(ks: Sequence[int], num_tries: int) -> None:
    """Refuse a k of pass@k that so many tries at each problem say nothing of.

    Raises:
        ConfigError: It names both options.
    """
    if ks and max(ks) > num_tries:
        raise ConfigError(
            f"--eval.pass_at {max(ks)}: pass@{max(ks)} is not defined with --eval.n_samples_per_prompt {num_tries}; "
            "give as many, or a smaller k"
        )


def mean_pass_at(problems: Sequence[Tries], k: int) -> float:
    """Return the mean over problems, of which each counts once.

    Never of all tries as if they were at one problem: 50 of 164 problems solved at the only try would be pass@10 0.977.

    Raises:
        ConfigError: There is no problem, or fewer than k tries at one.
    """
    if not problems:
        raise ConfigError(f"pass@{k} wants at least one problem")
    return math.fsum(tries.pass_at(k) for tries in problems) / len(problems)
