"""The training loop, to be read from top to bottom."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..executors.episodes.failures import check_failures
from ..executors.episodes.trajectory import Trajectory
from ..executors.rollouts.buffer import Group
from ..executors.rollouts.schedule import step_record, to_row
from .advantages import NEEDS_TEACHER
from .batch import Batch, assemble
from .loop_parts import InterruptedStepError, LoopSettings, LoopState, Parts
from .losses.kl_controller import KlController
from .run.records import keep_metrics, keep_schedule, keep_trajectories
from .run.report import Scores
from .run.saving import save_if_it_can
from .steps.advantages import with_advantages
from .steps.attempts import rollout_metrics, staleness_metrics
from .steps.evaluation import evaluate
from .steps.gather import gather
from .steps.rewards import shaped_rewards


def run_loop(
    parts: Parts, settings: LoopSettings, state: LoopState, scores: Scores, rows: list[dict[str, Any]]
) -> list[Group]:
    """Train until all steps are done or the run is asked to stop; return the last evaluation's episodes.

    Args:
        parts: What to drive.
        settings: The numbers.
        state: Where to begin; left where the loop ended.
        scores: Held-out rewards, added to.
        rows: Metrics of each step, added to.

    Raises:
        TrajectoryError: More attempts of one step failed than may.
        EngineError: Engines died more often than they may be replaced.
    """
    progress, rollouts = parts.progress, parts.rollouts
    eval_groups: list[Group] = []
    ended_at = time.monotonic()
    try:
        # Before the first step; later where a run goes on that was interrupted while it evaluated.
        if _is_due(state.step, parts, settings) and state.step not in scores.by_step:
            eval_groups = _evaluate(parts, settings, state, scores, {})
        while settings.goes_on(state.step, rollouts.has_more):
            step = state.step + 1
            seconds: dict[str, float] = {}
            progress.step_began(step)

            # 1. Groups of finished episodes, until the batch is full; with their rewards, what they are worth.
            with progress.stage("rollout", seconds):
                rollouts.begin_batch(parts.sync.version, max(1, settings.num_steps - state.step))
                gathered = gather(parts, settings, partial(_idle, parts, settings))
                rollouts.begin_learning()
            groups, rewards = gathered.groups, gathered.rewards
            schedule_row = to_row(step_record(step, parts.sync.version, gathered.takes))
            trajectories = [t for group in groups for t in group.trajectories]
            now = time.monotonic()
            metrics = rollout_metrics(
                gathered.trajectories, now - ended_at if settings.runs_ahead else seconds["rollout"], parts.members
            )
            metrics |= staleness_metrics(trajectories, parts.sync.version, rollouts.counts, rollouts.num_ready)
            metrics |= {} if parts.pools is None else parts.pools.metrics()
            kept = _kept(gathered.trajectories, settings.trajectories_per_step)
            metrics |= keep_trajectories(parts.folder.train_store, step, kept, progress.say)
            num_attempts = len(gathered.trajectories)
            if num_attempts >= settings.batches.attempts_per_step or not state.step:  # a few last ones say nothing
                check_failures(gathered.trajectories, num_attempts, settings.max_failed_fraction)
            if not groups:
                progress.say("no task is left: the last ones were all filtered out or dropped")
                break

            # 2. What the other models say of their tokens.
            with progress.stage("score", seconds):
                batch = _score(parts, settings, state, assemble(trajectories, rewards.is_valid_A))

            # 3. One advantage for each action token.
            batch, advantage_metrics = with_advantages(batch, groups, rewards, settings, state)
            metrics |= advantage_metrics | gathered.metrics

            # 4. Optimiser steps.
            updates = state.optimizer_steps
            with progress.stage("train", seconds):
                taken = _train(parts, settings, state, batch)
            metrics |= taken
            if settings.algo.kl.init_coef:
                metrics["kl/coef"] = state.kl_coef
            state.kl_coef = _next_kl_coef(settings, state, metrics, batch.num_attempts)
            # From here on the step is whole, whatever follows.
            state.step = step
            state.rollouts, state.frontier = rollouts.state(parts.frontier.state)

            try:
                # 5. The engines get the new weights, if there are any.
                if state.optimizer_steps > updates:
                    with progress.stage("sync", seconds):
                        rollouts.drop_stale(parts.sync.version + 1)
                        parts.sync.publish()

                # 6. Held-out tasks, now and then.
                if _is_due(step, parts, settings):
                    eval_groups = _evaluate(parts, settings, state, scores, seconds)
            finally:
                # 7. The books, also where one of these was cut short or failed: the step itself is whole.
                ended_at = time.monotonic()
                row = {"step": step, "part": state.part, "version": parts.sync.version, **metrics, "seconds": seconds}
                rows.append(row)
                keep_metrics(parts.folder, row, progress.say)
                keep_schedule(parts.folder, schedule_row, progress.say)
                progress.step_ended(step, metrics, seconds)

            # 8. A checkpoint now and then.
            if settings.save_every > 0 and step % settings.save_every == 0:
                with progress.stage("save", seconds):
                    save_if_it_can(parts, state, scores)
        if settings.eval_at_end and state.step not in scores.by_step:  # the last step was not known as the last
            eval_groups = _evaluate(parts, settings, state, scores, {})
    except InterruptedStepError:
        if not parts.interrupt.is_set():
            rollouts.raise_failure()  # it was these that asked for the stop
        state.is_interrupted = True
    return eval_groups


def _idle(parts: Parts, settings: LoopSettings) -> None:
    """Use the wait: the learner still has the published weights, which engines that were started anew want."""
    parts.sync.bring()
    parts.progress.detail(f"{parts.rollouts.num_ready}/{settings.batches.tasks_per_step} tasks")


def _score(parts: Parts, settings: LoopSettings, state: LoopState, batch: Batch) -> Batch:
    """Add what the models say of the batch's tokens, where the algorithm asks for it."""
    kl, estimator = settings.algo.kl, settings.algo.advantage.estimator
    updates = settings.batches.optimizer_steps * settings.num_epochs
    if updates > 1 or (kl.init_coef and not kl.use_loss) or estimator in NEEDS_TEACHER:
        batch = batch.with_old_logprobs(_known(parts.roles["actor"].batch_scores(batch, "actor")))
    if "reference" in parts.roles:
        batch = batch.with_ref_logprobs(_known(parts.roles["reference"].batch_scores(batch, "reference")))
    if "critic" in parts.roles:
        batch = batch.with_values(_known(parts.roles["critic"].batch_scores(batch, "critic")))
    if parts.teacher is not None:
        batch = batch.with_teacher_logprobs(_known(parts.teacher.logprobs(batch)))
    return batch


def _train(parts: Parts, settings: LoopSettings, state: LoopState, batch: Batch) -> dict[str, float]:
    """Take the step's optimiser steps and return the means of their metrics.

    A step may only be left before its first update: from then on the weights have moved, and it is finished.
    """
    taken: list[dict[str, float]] = []
    is_frozen = state.step < settings.freezing_steps
    objective = parts.objective
    if objective.kl_coef:
        objective = replace(objective, kl_coef=state.kl_coef)
    for _ in range(settings.num_epochs):
        for part in _mini_batches(batch, settings.batches.optimizer_steps):
            if "critic" in parts.roles and part.num_actions:
                lr = settings.critic_peak_lr * parts.critic_schedule.factor(state.critic_steps + 1)
                critic = parts.roles["critic"]
                taken.append(
                    _finished(critic.train(part, parts.value_objective, lr, role="critic", may_stop=not taken))
                )
                state.critic_steps += 1
            if is_frozen:
                continue
            if not part.num_actions or not ((part.advantages != 0).any() or objective.needs_all_sequences):
                why = "no attempt differs from its siblings" if part.num_actions else "no attempt is left"
                parts.progress.say(f"{why}: this update has no gradient and is skipped")
                continue
            lr = settings.peak_lr * parts.schedule.factor(state.optimizer_steps + 1)
            actor, version = parts.roles["actor"], parts.sync.version
            taken.append(_finished(actor.train(part, objective, lr, may_stop=not taken, version=version)))
            state.optimizer_steps += 1
    names = {name for metrics in taken for name in metrics}
    return {name: float(np.mean([m[name] for m in taken if name in m])) for name in sorted(names)}


def _evaluate(
    parts: Parts, settings: LoopSettings, state: LoopState, scores: Scores, seconds: dict[str, float]
) -> list[Group]:
    with parts.progress.stage("eval", seconds):
        result = evaluate(
            parts.rollouts,
            parts.eval_tasks,
            settings.eval_sampling,
            settings.eval_attempts,
            parts.progress,
            parts.interrupt.is_set,
            on_idle=parts.sync.bring,
            judge=None if parts.reward_reader is None else partial(_judged, parts, settings),
            members=parts.members,
            pass_at=settings.eval_pass_at,
        )
    if result is None:
        raise InterruptedStepError
    if result.reward is not None:
        scores.by_step[state.step] = result.reward
        if parts.members:
            scores.by_member[state.step] = dict(result.by_member)
    failed = f", {result.num_failed} of {result.num_attempts} attempts failed" if result.num_failed else ""
    shown = "-" if result.reward is None else f"{result.reward:.3f}"
    if result.by_member:
        shown += f" ({', '.join(f'{member} {reward:.3f}' for member, reward in result.by_member.items())})"
    passed = "".join(f", pass@{k} {share:.3f}" for k, share in sorted(result.pass_at.items()))
    parts.progress.say(f"step {state.step} | held-out reward {shown} on {result.num_tasks} tasks{passed}{failed}")
    episodes = [t for group in result.groups for t in group.trajectories]
    keep_trajectories(parts.folder.eval_store, state.step, episodes, parts.progress.say)
    return list(result.groups)


def _next_kl_coef(settings: LoopSettings, state: LoopState, metrics: dict[str, float], num_attempts: int) -> float:
    kl = settings.algo.kl
    if "kl/reference" not in metrics:
        return state.kl_coef  # nothing was trained on
    return KlController(state.kl_coef, kl.target, kl.horizon).updated(metrics["kl/reference"], num_attempts).coef


def _judged(parts: Parts, settings: LoopSettings, groups: Sequence[Group]) -> NDArray[np.float64]:
    return shaped_rewards(parts, settings, groups).raw_rewards_A


def _is_due(step: int, parts: Parts, settings: LoopSettings) -> bool:
    """Whether the held-out tasks are to be scored after this step."""
    if step == 0:
        return settings.eval_at_start
    is_last = not settings.goes_on(step, parts.rollouts.has_more)
    return (is_last and settings.eval_at_end) or (settings.eval_every > 0 and step % settings.eval_every == 0)


def _mini_batches(batch: Batch, count: int) -> list[Batch]:
    """Split a batch by attempts, which keep their sequences together, into about equal parts."""
    if count == 1 or not batch.num_sequences:
        return [batch]  # an empty one too: that there is nothing to learn from is to be said
    parts = np.array_split(np.unique(batch.attempts), count)
    return [batch.select(np.flatnonzero(np.isin(batch.attempts, part))) for part in parts if len(part)]


def _kept(trajectories: Sequence[Trajectory], count: int) -> Sequence[Trajectory]:
    return trajectories if count < 0 else trajectories[:count]


def _finished(metrics: dict[str, float] | None) -> dict[str, float]:
    if metrics is None:
        raise InterruptedStepError
    return metrics


def _known(logprobs_N: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if logprobs_N is None:
        raise InterruptedStepError
    return logprobs_N
