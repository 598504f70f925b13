"""Checks of tasks, environment and reward by what became of the episodes: failures, limits, unread answers, repeats."""

from collections import Counter
from collections.abc import Callable, Sequence

from ...executors.episodes.trajectory import Failure, FailureKind, Trajectory, TurnEnd
from .finding import Finding, Severity, Stage, check
from .folder import EVALUATIONS, TRAIN_EPISODES, Run
from .series import span

FAILED_WARNING, FAILED_PROBLEM = 0.05, 0.2
"""Share of attempts that failed: a twentieth is more than accidents, a fifth breaks most groups of 8 (0.8^8 = 0.17)."""
LIMIT_WARNING, LIMIT_PROBLEM = 0.2, 0.5
"""Share of attempts (or completions) that a limit cut off: below a fifth it is the odd answer, above half the rule."""
UNREAD_WARNING, UNREAD_PROBLEM = 0.2, 0.8
"""Share of answers nobody could read: a fifth is any untrained model; above four fifths reward says nothing else."""
REPEATED = 0.5
"""Share of distinct prompts below which a pass repeats itself; small procedural families repeat a little by chance."""
FEWEST_GROUPS = 8
"""Groups of attempts below which repeats may be chance."""

FAILURE_STAGES = {
    FailureKind.ENV: (Stage.ENVIRONMENT, "run `turngym envs check` on the environment"),
    FailureKind.ENV_TIMEOUT: (Stage.ENVIRONMENT, "make its steps quicker, or raise --env_pool.timeout_s"),
    FailureKind.ENV_UNAVAILABLE: (Stage.ENVIRONMENT, "mend what its message names, or give it more room (--env_pool)"),
    FailureKind.NO_TURN: (Stage.ENVIRONMENT, "look at games that end before each side has had a turn"),
    FailureKind.FORK_REFUSED: (Stage.ENVIRONMENT, "look at what the model's programs do before --rollout.branch_at"),
    FailureKind.REWARD: (Stage.REWARD, "call the reward function by hand on the episode named here"),
    FailureKind.GRADER: (Stage.REWARD, "look at the labels named here; the grader could give no verdict"),
    FailureKind.TEMPLATE: (Stage.ROLLOUT, "look at the messages that the model's chat template cannot render"),
    FailureKind.PROMPT_TOO_LONG: (Stage.TASKS, "raise --data.max_len, or leave long prompts out"),
    FailureKind.LOST: (Stage.ROLLOUT, "engines die or hang under these episodes: see what the run says of each"),
    FailureKind.STALE: (Stage.ROLLOUT, "the learner is too slow for the episodes in flight: keep fewer in flight"),
}
"""Stage and remedy by kind; all other kinds are the engine's."""
ENGINE_REMEDY = "read logs/processes for the engine's own error; give it more memory or a longer deadline"

LIMITS = {
    "ends/context": ("the context was full", "raise --data.max_len or keep observations short"),
    "ends/max_tokens": ("--rollout.max_episode_tokens was used up", "raise --rollout.max_episode_tokens"),
    "ends/max_turns": (
        "--rollout.max_turns was reached",
        "raise --rollout.max_turns, or tell the model how many it has",
    ),
    "ends/max_seconds": ("--rollout.max_seconds ran out", "raise --rollout.max_seconds, or find what is slow"),
}
READ_LOGS = ("parsed", "answer_found", "has_answer", "format", "format_ok", "valid_format", "valid_answer")
"""Names under which environments log that an answer could be read (1) or not (0)."""
UNREAD_LOGS = ("unparsed", "no_answer", "parse_error", "parse_failed", "format_error", "scorer_crashed")
"""Names under which they log the opposite."""


@check("attempts/failed or training episodes")
def failed_attempts(run: Run) -> Finding | None:
    """Attempts that yield no reward, by kind, with what one of each said."""
    failed, shares = run.series("attempts/failed"), run.per_attempt("attempts/failed")
    unfinished = [t.trajectory for t in run.train if t.step > run.last_step]
    counts = Counter({kind: int(sum(run.series(f"failures/{kind.value}").values)) for kind in FailureKind})
    counts.update(t.failure.kind for t in unfinished if t.failure is not None)
    num_failed = sum(failed.values) + sum(not t.is_valid for t in unfinished)
    num_attempts = run.num_attempts + len(unfinished)
    worst = max([*shares.values, _share(unfinished, lambda t: not t.is_valid)])
    if not num_attempts or (num_failed / num_attempts < FAILED_WARNING and worst < FAILED_PROBLEM):
        return None
    kinds = {kind: count for kind, count in counts.most_common() if count}
    stage, remedy = FAILURE_STAGES.get(next(iter(kinds), FailureKind.ENGINE), (Stage.ENGINE, ENGINE_REMEDY))
    evidence = [f"{num_failed:.0f} of {num_attempts:.0f} attempts failed; at worst {worst:.0%} in one step"]
    if unfinished:
        evidence.append(f"step {run.last_step + 1} has episodes and no metrics: the run ended in it, or is still at it")
    evidence += [f"{kind.value}: {count} times{_example(run, kind)}" for kind, count in kinds.items()]
    retries = sum(run.series("attempts/retries").values)
    if retries:
        evidence.append(f"beside these, attempts were begun again {retries:.0f} times")
    is_bad = num_failed / num_attempts >= FAILED_PROBLEM or bool(unfinished and worst >= FAILED_PROBLEM)
    severity = Severity.PROBLEM if is_bad else Severity.WARNING
    kind_names = ", ".join(kind.value for kind in kinds) or "of a kind that is not known"
    return Finding(stage, severity, f"Attempts fail: {kind_names}", tuple(evidence), remedy)


@check("attempts/retries")
def retried_attempts(run: Run) -> Finding | None:
    """Failures that a second try hides, which still cost time."""
    share = run.per_attempt("attempts/retries")
    if not len(share) or share.mean < FAILED_PROBLEM:
        return None
    failures = [failure for stored in run.train for failure in stored.trajectory.earlier_failures]
    kind, example = _most_common(failures)
    stage, remedy = FAILURE_STAGES.get(kind, (Stage.ENGINE, ENGINE_REMEDY)) if kind else (Stage.ENVIRONMENT, "")
    evidence = (f"{share.mean:.2f} retries per attempt", *([f"most often {kind.value}{example}"] if kind else []))
    todo = remedy or "write more episodes (--logger.trajectories_per_step) to see what fails"
    return Finding(stage, Severity.WARNING, "Many attempts succeed only when they are begun again", evidence, todo)


@check(" or ".join(["training episodes", "ends/terminated", *LIMITS]))
def cut_off_episodes(run: Run) -> Finding | None:
    """Episodes and completions that a limit ended: their reward is the limit's, not the answer's."""
    ends = [name for name in {key for row in run.rows for key in row} if name.startswith("ends/")]
    half = run.last_step // 2
    total = sum(sum(run.series(name).between(half + 1, float("inf")).values) for name in ends)
    shares = (
        {name: sum(run.series(name).between(half + 1, float("inf")).values) / total for name in LIMITS} if total else {}
    )
    turns = Counter(end for stored in run.train if stored.step > half for end in stored.trajectory.turn_ends)
    shares[TurnEnd.TURN_TOKENS] = turns[TurnEnd.TURN_TOKENS] / max(1, turns.total())
    name, share = max(shares.items(), key=lambda item: item[1])
    if share < LIMIT_WARNING:
        return None
    why, remedy = LIMITS.get(name, ("--rollout.max_new_tokens was reached", "raise --rollout.max_new_tokens"))
    what = "completions" if name == TurnEnd.TURN_TOKENS else "episodes"
    limit = run.setting("rollout.max_new_tokens") if name == TurnEnd.TURN_TOKENS else None
    evidence = [
        f"{share:.0%} of the {what} since step {half + 1} ended because {why}" + (f" ({limit})" if limit else "")
    ]
    evidence += [f"{LIMITS[other][0]}: {shares[other]:.0%}" for other in LIMITS if other != name and shares.get(other)]
    severity = Severity.PROBLEM if share >= LIMIT_PROBLEM else Severity.WARNING
    todo = f"{remedy}; or leave such attempts out of the loss by --algo.advantage.mask_truncated"
    return Finding(Stage.ROLLOUT, severity, f"A limit cuts off {share:.0%} of the {what}", tuple(evidence), todo)


@check(" or ".join([TRAIN_EPISODES, *(f"env/{name}" for name in READ_LOGS + UNREAD_LOGS)]))
def unread_answers(run: Run) -> Finding | None:
    """Answers that nobody could read, by the environment's own logs, or because they are empty."""
    rates = {name: 1 - run.series(f"env/{name}").late for name in READ_LOGS if len(run.series(f"env/{name}"))}
    rates |= {name: run.series(f"env/{name}").late for name in UNREAD_LOGS if len(run.series(f"env/{name}"))}
    late = [t.trajectory for t in run.train if t.step > run.last_step // 2 and t.trajectory.is_valid]
    rates["empty"] = _share(late, lambda t: not _answer(t).strip())
    name, share = max(rates.items(), key=lambda item: item[1])
    if share < UNREAD_WARNING:
        return None
    source = "the last answer is empty" if name == "empty" else f"the environment logs {name!r}"
    evidence = [f"{share:.0%} of the late attempts: {source}"]
    example = next((t for t in late if t.reward <= min(other.reward for other in late)), None)
    if example is not None:
        evidence.append(f"for example {_shortened(_answer(example))!r} on task {example.task.id!r}")
    severity = Severity.PROBLEM if share >= UNREAD_PROBLEM else Severity.WARNING
    todo = "say in the prompt which form the answer takes, or make the environment read what the model writes"
    return Finding(Stage.REWARD, severity, f"{share:.0%} of the answers cannot be read", tuple(evidence), todo)


@check(TRAIN_EPISODES)
def repeated_tasks(run: Run) -> Finding | None:
    """The same prompts again and again within one pass."""
    groups = {(stored.step, stored.trajectory.task.id): _prompt(stored.trajectory) for stored in run.train}
    prompts = Counter(groups.values())
    passes = run.number("train.num_episodes") or 1.0
    share = len(prompts) / max(1, len(groups))
    if len(groups) < FEWEST_GROUPS or share * passes >= REPEATED:
        return None
    prompt, count = prompts.most_common(1)[0]
    steps = [step for (step, _), text in groups.items() if text == prompt]
    evidence = (
        f"{len(groups)} groups of attempts have {len(prompts)} different prompts, in {passes:g} passes",
        f"one came {count} times ({span(steps)}): {_shortened(prompt)}",
    )
    todo = "give more tasks, or remove doubles from the dataset; what is repeated is learnt by heart"
    return Finding(Stage.TASKS, Severity.WARNING, "Tasks repeat themselves", evidence, todo)


@check(TRAIN_EPISODES, EVALUATIONS)
def held_out_tasks_seen(run: Run) -> Finding | None:
    """Held-out prompts that are trained on as well, so that their reward says nothing about others."""
    seen, held_out = ({_prompt(stored.trajectory) for stored in part} for part in (run.train, run.held_out_episodes))
    both = seen & held_out
    if not both:
        return None
    evidence = (f"{len(both)} of {len(held_out)} held-out prompts were trained on, such as {_shortened(min(both))}",)
    todo = "keep the two sets apart (--eval.dataset)"
    return Finding(Stage.TASKS, Severity.WARNING, "Held-out tasks are trained on", evidence, todo)


def _share(trajectories: Sequence[Trajectory], holds: Callable[[Trajectory], bool]) -> float:
    return sum(map(holds, trajectories)) / len(trajectories) if trajectories else 0.0


def _prompt(trajectory: Trajectory) -> str:
    """What tells tasks apart: the prompt, or the id where the environment makes the prompt itself."""
    return str(trajectory.task.prompt or trajectory.task.id)


def _answer(trajectory: Trajectory) -> str:
    """The text of the last thing the model said."""
    said = [message for message in trajectory.messages if message["role"] == "assistant"]
    if not said:
        return ""
    content, calls = said[-1]["content"] or "", said[-1].get("tool_calls")
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return text if not calls else f"{text} {calls}"


def _example(run: Run, kind: FailureKind) -> str:
    """What one failure of this kind said, and where."""
    for stored in run.train:
        failure = stored.trajectory.failure
        if failure is not None and failure.kind is kind:
            where = f"step {stored.step}, task {stored.trajectory.task.id!r}, turn {failure.turn}"
            return f", such as {_shortened(failure.message)!r} ({where})"
    return " (no example among the episodes that were kept)"


def _most_common(failures: Sequence[Failure]) -> tuple[FailureKind | None, str]:
    kinds = Counter(failure.kind for failure in failures)
    if not kinds:
        return None, ""
    kind = kinds.most_common(1)[0][0]
    return kind, f", such as {_shortened(next(f.message for f in failures if f.kind is kind))!r}"


def _shortened(text: str, width: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[:width]}..."
