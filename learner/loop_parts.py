"""What the loop drives, its numbers, and where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..agents.base import Sampling
from ..envs.task import Task
from ..errors import TurnGymError
from ..executors.fleet.fleet import Fleet
from ..executors.rollouts.dispatch import RolloutState
from ..executors.rollouts.rollouts import Rollouts
from .env_pools import EnvPools
from .losses.objective import Objective
from .losses.value import ValueObjective
from .options import AlgoOptions
from .ranks.roles import Roles
from .ranks.schedule import Schedule
from .rewards.scoring import RewardReader
from .rewards.shaping import Shaping
from .run.batch_plan import BatchPlan
from .run.checkpoint import CheckpointFolder
from .run.folder import RunFolder
from .run.interrupt import Interrupt
from .run.progress import Progress
from .steps.frontier import Frontier, FrontierState
from .teacher import Teacher
from .weight_sync import WeightSync


class InterruptedStepError(TurnGymError):
    """The run was asked to stop where the weights are those of the last whole step."""


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of the loop; all else is in the parts it drives."""

    batches: BatchPlan
    num_steps: int  # the most, or how many it takes if every batch is full
    num_epochs: int  # passes over each step's attempts
    sampling: Sampling
    eval_sampling: Sampling
    eval_attempts: int
    eval_every: int
    eval_at_start: bool
    eval_at_end: bool
    save_every: int
    algo: AlgoOptions
    shaping: Shaping
    peak_lr: float
    critic_peak_lr: float
    freezing_steps: int  # first steps, in which only the critic learns
    runs_ahead: bool  # rollouts go on while the learner works
    max_failed_fraction: float
    trajectories_per_step: int
    eval_pass_at: tuple[int, ...] = ()
    ends_with_tasks: bool = False  # and not by the number of steps: batches that were cut short leave tasks for more

    def goes_on(self, step: int, has_more: bool) -> bool:
        """Say whether another step follows this one, where `has_more` says whether it would hold anything."""
        return has_more and (self.ends_with_tasks or step < self.num_steps)

    @property
    def filters(self) -> bool:
        """Whether groups that teach nothing are left out, and others taken for them."""
        return self.algo.dynamic_filtering_enable


@dataclass
class LoopState:
    """Where the loop stands after its last whole step; what a checkpoint's driver part holds.

    Attributes:
        frontier: Which tasks come next. Those of a step that was cut short are drawn again.
        rollouts: What was finished ahead of the learner, and what was begun.
        step: Steps done.
        optimizer_steps: Updates of the actor's weights.
        critic_steps: Updates of the critic's.
        saved_step: The step of the newest checkpoint; None without one.
        part: Which part of the run this is; each start of its processes begins another.
        kl_coef: Weight of the KL, which may adapt.
        is_interrupted: The run was asked to stop before its end.
    """

    frontier: FrontierState
    rollouts: RolloutState = field(default_factory=lambda: RolloutState((), (), {}))
    step: int = 0
    optimizer_steps: int = 0
    critic_steps: int = 0
    saved_step: int | None = None
    part: int = 1
    kl_coef: float = 0.0
    is_interrupted: bool = False


@dataclass(frozen=True)
class Parts:
    """What the loop drives."""

    eval_tasks: Sequence[Task]
    frontier: Frontier
    fleet: Fleet
    rollouts: Rollouts
    roles: Roles
    sync: WeightSync
    objective: Objective
    schedule: Schedule
    value_objective: ValueObjective
    critic_schedule: Schedule
    reward_reader: RewardReader | None
    teacher: Teacher | None
    checkpoints: CheckpointFolder
    written_by: dict[str, str | int]  # what a checkpoint can only be read by
    folder: RunFolder
    progress: Progress
    interrupt: Interrupt
    pools: EnvPools | None = None  # None where environments do not live in rollout actors
    members: tuple[str, ...] = ()  # names of a mixture's environments
