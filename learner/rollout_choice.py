"""Which rollouts a run has: free ones, those in bursts, or those that follow a schedule."""

from collections.abc import Callable
from pathlib import Path

from ..executors.fleet.fleet import Fleet
from ..executors.rollouts.bursts import Bursts
from ..executors.rollouts.draws import TaskSource
from ..executors.rollouts.following import FollowingRollouts
from ..executors.rollouts.rollouts import Rollouts
from ..executors.rollouts.schedule import RolloutSchedule, read_schedule
from ..executors.rollouts.scheduled_fleet import ScheduledFleet
from .run.from_settings import pace, rollout_plan
from .run.settings import TrainSettings


def schedule_to_follow(settings: TrainSettings) -> RolloutSchedule | None:
    """Read the schedule that --train.replay_schedule names; None where there is none.

    Raises:
        ConfigError: It cannot be followed.
    """
    path = settings.train.replay_schedule
    return None if path is None else read_schedule(Path(path))


def make_rollouts(
    settings: TrainSettings,
    schedule: RolloutSchedule | None,
    fleet: Fleet,
    source: TaskSource,
    should_stop: Callable[[], bool],
) -> Rollouts:
    """Make a run's rollouts; not started."""
    numbers, plan, train = pace(settings), rollout_plan(settings), settings.train
    if schedule is not None:
        return FollowingRollouts(schedule, ScheduledFleet(fleet), source, numbers, plan, should_stop)
    if train.full_determinism_enable and not train.async_enable:
        return Rollouts(Bursts(fleet), source, numbers, plan)
    return Rollouts(fleet, source, numbers, plan)
