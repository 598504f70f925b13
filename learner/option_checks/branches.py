"""Whether tree rollouts fit the other options and the environment; torch-free, so that a mistake shows at once."""

from itertools import pairwise

from ...agents.frameworks.factory import AgentFactory
from ...envs.factory import EnvFactory
from ...errors import ConfigError
from ..advantages import NEEDS_GROUP
from ..run.settings import TrainSettings
from .ranges import changed_options


def check_branches(settings: TrainSettings) -> None:
    """Refuse branches that no episode could have, and attempts that do not divide into trees."""
    rollout = settings.rollout
    if not rollout.branch_at:
        if changed_options(settings, "rollout.branch_factor"):
            raise ConfigError(
                "--rollout.branch_factor has no effect without --rollout.branch_at, the turns to fork after"
            )
        return
    given = f"--rollout.branch_at {' '.join(map(str, rollout.branch_at))}"
    if any(later <= turn for turn, later in pairwise(rollout.branch_at)):
        raise ConfigError(f"{given}: give each turn once, in order")
    if rollout.branch_at[-1] >= rollout.max_turns - 1:
        raise ConfigError(
            f"{given}: turns count from 0, so that of --rollout.max_turns {rollout.max_turns} the last is "
            f"{rollout.max_turns - 1}, and after it nothing goes on that could branch; give an earlier one"
        )
    leaves = num_leaves(settings)
    if rollout.n_samples_per_prompt % leaves:
        raise ConfigError(
            f"{given} with --rollout.branch_factor {rollout.branch_factor} makes {leaves} attempts of each episode "
            f"that begins, and --rollout.n_samples_per_prompt {rollout.n_samples_per_prompt} does not divide by that"
        )


def check_can_fork(settings: TrainSettings, env: EnvFactory | AgentFactory) -> None:
    """Refuse an environment that cannot fork where episodes are to branch, and an agent that is no environment."""
    if isinstance(env, AgentFactory):
        if settings.rollout.branch_at:
            raise ConfigError(f"--rollout.branch_at forks environments, and --agent {env.spec} is none; leave it out")
        return
    if settings.rollout.branch_at and not env.can_fork:
        what = f"no member of {env.spec!r}" if env.members else f"{env.spec!r} ({env.env_class.__name__})"
        raise ConfigError(
            f"--rollout.branch_at wants an environment that can fork, and {what} has {'a' if env.members else 'no'} "
            "fork of its own; leave the option out, or give the class can_fork and fork (docs/environments.md)"
        )


def branch_complaints(settings: TrainSettings) -> list[str]:
    """Return what can be meant and rarely is."""
    rollout, estimator = settings.rollout, settings.algo.advantage.estimator
    if not rollout.branch_at or estimator not in NEEDS_GROUP or rollout.n_samples_per_prompt > num_leaves(settings):
        return []
    return [
        f"--rollout.branch_at with --rollout.n_samples_per_prompt {rollout.n_samples_per_prompt}: all attempts at a "
        f"task are leaves of one tree, so --algo.advantage.estimator {estimator} has nothing to compare turns with "
        f"that come before the first branch, and they are not learned from; give {2 * rollout.n_samples_per_prompt}"
    ]


def num_leaves(settings: TrainSettings) -> int:
    """Return how many attempts one tree has."""
    return int(settings.rollout.branch_factor ** len(settings.rollout.branch_at))
