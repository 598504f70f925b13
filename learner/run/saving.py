"""Checkpoints of the whole run: what the loop writes now and then, and what is written when it ends."""

from dataclasses import asdict

from ...errors import CheckpointError
from ...executors.rollouts.buffer_file import FINISHED, write_finished
from ..loop_parts import LoopState, Parts
from .report import Scores


def save(parts: Parts, state: LoopState, scores: Scores) -> None:
    """Write a checkpoint of everything that a resumed run needs, unless the last one holds it already.

    Raises:
        CheckpointError: The disk does not take it; earlier ones are as they were, and nothing is left of this one.
    """
    if state.saved_step == state.step:
        return
    checkpoints = parts.checkpoints
    folder = checkpoints.root / checkpoints.tag(state.step)
    try:
        _write(parts, state, scores)
    except (OSError, CheckpointError) as error:
        checkpoints.abandon(state.step)
        earlier = "there is none yet" if state.saved_step is None else f"the newest is that of step {state.saved_step}"
        raise CheckpointError(
            f"the checkpoint of step {state.step} cannot be written to {str(folder)!r}: {error}; {earlier}; "
            "is there enough space? --ckpt.path can name another place, and --ckpt.max_num fewer to keep"
        ) from error
    state.saved_step = state.step
    for complaint in checkpoints.drop_oldest(state.step):
        parts.progress.say(f"WARNING: {complaint}")


def save_if_it_can(parts: Parts, state: LoopState, scores: Scores) -> None:
    """Write a checkpoint, or say loudly that the disk does not take it: the run goes on, and will try again."""
    try:
        save(parts, state, scores)
    except CheckpointError as error:
        parts.progress.say(f"WARNING: {error}. The run goes on")


def _write(parts: Parts, state: LoopState, scores: Scores) -> None:
    tag = parts.checkpoints.begin(state.step)
    parts.roles.save(str(parts.checkpoints.root), tag, {"step": state.step})
    write_finished(parts.checkpoints.root / tag / FINISHED, state.rollouts.finished)
    if parts.pools is not None:
        parts.pools.write(parts.checkpoints.root / tag)
    parts.checkpoints.finish(
        state.step,
        {
            "part": state.part,
            "optimizer_steps": state.optimizer_steps,
            "critic_steps": state.critic_steps,
            "kl_coef": state.kl_coef,
            "version": parts.sync.version,
            "written_by": parts.written_by,
            "frontier": asdict(state.frontier),
            "rollout_counts": state.rollouts.counts,
            "scores": {str(step): reward for step, reward in scores.by_step.items()},
            "member_scores": {str(step): rewards for step, rewards in scores.by_member.items()},
        },
    )
