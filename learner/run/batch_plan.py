"""The run in numbers, worked out and checked before anything is loaded."""

from dataclasses import dataclass

from ...errors import ConfigError
from ...executors.options import RolloutOptions
from ..advantages import NEEDS_GROUP
from ..options import AdvantageOptions, TrainOptions


@dataclass(frozen=True)
class BatchPlan:
    """How many attempts make a step, and how many optimiser steps it takes to use them."""

    tasks_per_step: int
    attempts_per_task: int
    optimizer_steps: int  # per pass over one step's attempts

    @property
    def attempts_per_step(self) -> int:
        """Attempts that one step rolls out."""
        return self.tasks_per_step * self.attempts_per_task


def plan_batches(
    rollout: RolloutOptions, train: TrainOptions, advantage: AdvantageOptions, world_size: int
) -> BatchPlan:
    """Check that the batch sizes fit each other.

    Raises:
        ConfigError: They do not; the message names the options, the rule and the nearest values that work.
    """
    if advantage.estimator in NEEDS_GROUP and rollout.n_samples_per_prompt < 2:
        raise ConfigError(
            f"--algo.advantage.estimator {advantage.estimator} compares attempts at one task and needs "
            f"--rollout.n_samples_per_prompt of at least 2, got {rollout.n_samples_per_prompt}"
        )
    attempts = rollout.batch_size * rollout.n_samples_per_prompt
    if attempts % train.batch_size:
        divisors = [size for size in range(1, attempts + 1) if attempts % size == 0]
        nearest = sorted(divisors, key=lambda size: abs(size - train.batch_size))[:3]
        raise ConfigError(
            f"--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt "
            f"{rollout.n_samples_per_prompt} = {attempts} attempts per step do not divide into batches of "
            f"--train.batch_size {train.batch_size}; nearest values that work: {', '.join(map(str, sorted(nearest)))}"
        )
    if train.batch_size < world_size:
        raise ConfigError(
            f"--train.batch_size {train.batch_size} is smaller than the {world_size} learner ranks; "
            f"use at least {world_size}"
        )
    return BatchPlan(rollout.batch_size, rollout.n_samples_per_prompt, attempts // train.batch_size)
