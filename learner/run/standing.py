"""Where a run stands: from the newest checkpoint, through the loop, and into the next one even if the engines fail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import CheckpointError, LearnerError, TurnGymError
from ...executors.rollouts.buffer import Group
from ...executors.rollouts.buffer_file import FINISHED, read_finished
from ...executors.rollouts.rollouts import Rollouts
from ..loop import run_loop
from ..loop_parts import LoopSettings, LoopState, Parts
from ..losses.kl_controller import resumed_coef
from ..options import KlOptions
from ..ranks.roles import Roles
from ..steps.frontier import Frontier, FrontierState
from .checkpoint import Checkpoint
from .folder import RunFolder
from .report import Scores
from .saving import save


@dataclass
class Standing:
    """Where the run stands, from its earlier parts on; the loop adds to it."""

    state: LoopState
    scores: Scores
    rows: list[dict[str, Any]]  # Any: JSON


def begun(frontier: Frontier, kl: KlOptions) -> Standing:
    """Stand before the first step."""
    return Standing(LoopState(frontier.state(), kl_coef=kl.init_coef), Scores({}), [])


def resumed(
    checkpoint: Checkpoint | None,
    roles: Roles,
    frontier: Frontier,
    rollouts: Rollouts,
    folder: RunFolder,
    kl: KlOptions,
    say: Callable[[str], None],
) -> Standing:
    """Stand where a checkpoint was written; steps that the run folder has beyond it are forgotten, and taken again.

    Args:
        checkpoint: None stands before the first step.
        roles: Get their weights back.
        frontier: Gets its position back, unless it has other tasks now.
        rollouts: Get back what was finished and not learned from; not started yet.
        folder: Of the run.
        kl: Says whether its coefficient adapts.
        say: Where lines for the user go.
    """
    if checkpoint is None:
        say("there is no checkpoint to go on from: the run begins at the first step")
        folder.forget_steps_after(-1)
        return begun(frontier, kl)
    roles.load(str(checkpoint.path.parent), checkpoint.path.name)
    complaint = frontier.restore(FrontierState(**checkpoint.state["frontier"]))
    say(complaint or f"going on after step {checkpoint.step}")
    if complaint is None:
        finished = read_finished(checkpoint.path / FINISHED, frontier.named)
        rollouts.restore(finished, checkpoint.state["rollout_counts"])
    scores = Scores(
        {int(step): reward for step, reward in checkpoint.state["scores"].items()},
        {int(step): rewards for step, rewards in checkpoint.state.get("member_scores", {}).items()},
    )
    rollout_state, frontier_state = rollouts.state(frontier.state)
    state = LoopState(
        frontier_state,
        rollout_state,
        checkpoint.step,
        checkpoint.state["optimizer_steps"],
        checkpoint.state["critic_steps"],
        saved_step=checkpoint.step,
        part=checkpoint.state["part"] + 1,
        kl_coef=resumed_coef(kl, checkpoint.state["kl_coef"]),
    )
    return Standing(state, scores, folder.forget_steps_after(checkpoint.step))


def go_on(parts: Parts, settings: LoopSettings, standing: Standing) -> list[Group]:
    """Run the loop from where the run stands; return the last evaluation's episodes.

    What was learned must not go down with engines, environments or a weight update: the learner is well then and
    stands after a whole step, and that is saved before the error goes on. No step is finished for rollouts that have
    failed for good.
    """
    state = standing.state
    parts.rollouts.on_failure(parts.roles.request_stop)
    if parts.teacher is not None:
        parts.rollouts.on_failure(parts.teacher.request_stop)
    try:
        return run_loop(parts, settings, state, standing.scores, standing.rows)
    except (LearnerError, CheckpointError):
        raise
    except TurnGymError:
        if state.step:
            try:
                save(parts, state, standing.scores)
                parts.progress.say(f"the state after step {state.step} is saved; --ckpt.load_enable goes on from there")
            except CheckpointError as unsaved:  # the first error is the one to be told of at the end
                parts.progress.say(f"WARNING: {unsaved}")
        raise
