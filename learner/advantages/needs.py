"""Which estimators need what, and which reward their turns may answer for."""

from ...errors import ConfigError

CREDITS = ("outcome", "discounted", "turn", "turn_group")
"""The episode's reward, the same discounted by turns, the turn's own and later ones, and GiGPO's."""

NEEDS_GROUP = ("group_norm", "reinforce_baseline", "dr_grpo", "rloo", "maxrl")
"""Estimators that compare the attempts at one task with each other: two attempts per task at least."""

NEEDS_VALUES = ("gae", "turn_gae")
"""Estimators that need a critic's values."""

NEEDS_TEACHER = ("on_policy_distill",)
"""Estimators that need a teacher's logprobs, and the policy's own."""

_CREDITS_OF = {
    "gae": ("outcome", "turn"),
    "turn_gae": ("outcome", "turn"),
    "reinforce": ("outcome", "discounted", "turn"),
    "flash_reinforce": ("outcome", "discounted", "turn"),
    "maxrl": ("outcome", "discounted"),
    "on_policy_distill": ("outcome",),
}
_WHY_NOT = {
    "gae": "it discounts by itself and compares no turns",
    "turn_gae": "it discounts by itself and compares no turns",
    "reinforce": "it compares nothing within a group",
    "flash_reinforce": "it compares across tasks, where no two turns begin in the same state",
    "maxrl": "it raises the likelihood that an episode succeeds, and a turn's share of a reward is no success",
    "on_policy_distill": "it learns from the teacher alone",
}


def check_credit(estimator: str, credit: str, gamma: float, lambd: float) -> None:
    """Refuse what has no meaning together; an estimator that is not ours may take anything.

    Raises:
        ConfigError: Names both options, and what to use instead.
    """
    for option, number in (("gamma", gamma), ("lambd", lambd)):
        if not 0 <= number <= 1:
            raise ConfigError(f"--algo.advantage.{option} must lie between 0 and 1, got {number}")
    if credit not in CREDITS:
        raise ConfigError(f"--algo.advantage.credit must be one of {', '.join(CREDITS)}; got {credit!r}")
    name = f"--algo.advantage.estimator {estimator}"
    allowed = _CREDITS_OF.get(estimator, CREDITS)
    if credit not in allowed:
        raise ConfigError(
            f"{name} does not go with --algo.advantage.credit {credit}: {_WHY_NOT[estimator]}; "
            f"use {' or '.join(allowed)}, or another estimator"
        )
    if lambd != 1 and estimator in (*NEEDS_GROUP, *NEEDS_TEACHER, "reinforce", "flash_reinforce"):
        raise ConfigError(
            f"--algo.advantage.lambd {lambd} has no meaning with {name}, which has no critic; leave it at 1, "
            f"or use {' or '.join(NEEDS_VALUES)}"
        )
    if gamma != 1 and estimator in NEEDS_TEACHER:
        raise ConfigError(
            f"--algo.advantage.gamma {gamma} has no meaning with {name}, where each token answers for itself "
            "alone; leave it at 1"
        )
