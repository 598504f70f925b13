"""Checks of reward and advantages: whether attempts differ, and whether what is learnt holds elsewhere."""

from .finding import Finding, Severity, Stage, check
from .folder import EVALUATIONS, TRAIN_EPISODES, Run
from .series import SIGMAS, Series

NO_SPREAD_WARNING, NO_SPREAD_PROBLEM = 0.8, 0.95
"""Late share of attempts in groups of equal rewards. Runs that learn well end at 0.2 to 0.75; at 0.95 with 8 groups a
step two steps in three have no gradient at all."""
LONE = 0.05
"""Share of valid attempts left alone in their group; each throws an episode away."""
KEPT = 0.2
"""Share of groups kept by dynamic filtering below which four episodes in five are rolled out for nothing."""
GROUP_VERDICTS = ("groups/kept", "groups/without_spread", "groups/out_of_range", "groups/without_valid")
"""What dynamic filtering says of a group."""
CARRIED_OVER = 0.2
"""Share of the rise in training below which the held-out reward counts as flat."""
CLIPPED = 0.05
"""Share of rewards beyond reward.clip_range; clipped rewards are equal, and say less."""
ALL_ALIKE = 1e-9
"""A standard deviation below this is rounding."""
NEEDS_NO_SPREAD = ("gae", "turn_gae", "reinforce", "flash_reinforce", "on_policy_distill")
"""Estimators that do not compare the attempts at one task: equal rewards have a gradient all the same."""
MASKED = 0.5
"""Share of attempts left out of the loss because they were cut off."""


@check("attempts/without_signal", "attempts/valid")
def no_spread(run: Run) -> Finding | None:
    """Groups whose attempts all score alike, which have no gradient; says whether tasks are too hard or too easy."""
    share = run.share("attempts/without_signal", "attempts/valid")
    if not len(share) or share.late < NO_SPREAD_WARNING or not _compares_siblings(run):
        return None
    reward, spread = run.series("reward/mean"), run.series("reward/std")
    evidence = [
        f"{share.late:.0%} of the attempts had siblings of equal reward in {share.late_steps} "
        f"({share.early:.0%} in the first quarter)"
    ]
    if len(reward):
        evidence.append(f"mean reward {reward.late:.3g} in {reward.late_steps}, {reward.early:.3g} at first")
    if len(spread):
        evidence.append(f"standard deviation of the rewards of a step {spread.late:.3g}")
    why, todo = _why_alike(run, reward, spread)
    severity = Severity.PROBLEM if share.late >= NO_SPREAD_PROBLEM else Severity.WARNING
    title = f"{share.late:.0%} of the attempts teach nothing: {why}"
    return Finding(Stage.ADVANTAGES, severity, title, tuple(evidence), todo)


@check("attempts/lone_survivors", "attempts/valid")
def lone_survivors(run: Run) -> Finding | None:
    """Attempts whose siblings all failed."""
    share = run.share("attempts/lone_survivors", "attempts/valid")
    if not len(share) or share.mean < LONE or not _compares_siblings(run):
        return None
    evidence = (f"{share.mean:.0%} of the valid attempts on average, {max(share.values):.0%} at worst; they score 0",)
    todo = "repair what makes their siblings fail, or raise --rollout.max_retries or --rollout.n_samples_per_prompt"
    return Finding(Stage.ADVANTAGES, Severity.WARNING, "Attempts are left without siblings", evidence, todo)


@check("groups/kept", "groups/without_spread or groups/out_of_range")
def few_groups_kept(run: Run) -> Finding | None:
    """Dynamic filtering that throws most groups away."""
    names = [name for name in GROUP_VERDICTS if len(run.series(name))]
    share = run.share("groups/kept", *names)
    if not len(share) or share.late >= KEPT:
        return None
    counts = ", ".join(f"{name.removeprefix('groups/')} {run.series(name).late:.3g}" for name in names)
    evidence = (f"{share.late:.0%} of the groups were kept in {share.late_steps}: {counts} per step",)
    todo = "give tasks nearer to what the model can do; most of what is rolled out is thrown away"
    return Finding(Stage.TASKS, Severity.WARNING, "Dynamic filtering keeps few groups", evidence, todo)


@check("reward/mean", EVALUATIONS)
def not_carried_over(run: Run) -> Finding | None:
    """Reward that rises in training and not on held-out tasks."""
    reward, held_out = run.series("reward/mean"), run.held_out
    first, last = min(held_out), max(held_out)
    before, after = held_out[first], held_out[last]
    rise = after.reward - before.reward
    errors = [score.error for score in (before, after) if score.error is not None]
    error = sum(e * e for e in errors) ** 0.5
    if not reward.rises or rise > CARRIED_OVER * reward.change or SIGMAS * error > reward.change:
        return None
    tasks = f" on {after.num_tasks} tasks (standard error of the change {error:.2g})" if errors else ""
    evidence = (
        f"training reward {reward.change:+.3g} from the first quarter to the last ({reward.early:.3g} to "
        f"{reward.late:.3g})",
        f"held-out reward {rise:+.3g} from step {first} to step {last} ({before.reward:.3g} to "
        f"{after.reward:.3g}){tasks}",
    )
    todo = (
        "read late training episodes for a shortcut that the reward allows; give more, and more varied, tasks; "
        "check that held-out tasks are asked, sampled and scored the same way"
    )
    return Finding(Stage.REWARD, Severity.WARNING, "Reward rises in training only", evidence, todo)


@check("reward/mean", EVALUATIONS)
def held_out_fell(run: Run) -> Finding | None:
    """Held-out reward that ends well below its best."""
    scores = run.held_out
    best = max(scores, key=lambda step: scores[step].reward)
    last = max(scores)
    drop = scores[best].reward - scores[last].reward
    errors = [scores[step].error for step in (best, last)]
    known = [e for e in errors if e is not None]
    # The best of several is the best partly by chance, so the bar is as high as for a trend.
    if len(known) < 2 or drop <= SIGMAS * sum(e * e for e in known) ** 0.5:
        return None
    evidence = (f"held-out reward {scores[best].reward:.3g} at step {best}, {scores[last].reward:.3g} at step {last}",)
    todo = "take the checkpoint of the better step; lower the learning rate, or add KL to the reference"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "Held-out reward has fallen from its best", evidence, todo)


@check(f"reward/clipped or {TRAIN_EPISODES}", "reward.clip_range or reward/clipped")
def clipped_rewards(run: Run) -> Finding | None:
    """Rewards beyond the range they are clipped to."""
    bounds = run.setting("reward.clip_range") or (float("-inf"), float("inf"))
    rewards = [stored.trajectory.reward for stored in run.train if stored.trajectory.is_valid]
    logged = run.series("reward/clipped")
    outside = sum(not bounds[0] <= reward <= bounds[1] for reward in rewards) / max(1, len(rewards))
    share = logged.mean if len(logged) else outside
    if share < CLIPPED:
        return None
    evidence = [f"{share:.0%} of the rewards lie outside --reward.clip_range {tuple(bounds)}"]
    if rewards:
        evidence.append(f"rewards of the episodes that were kept: {min(rewards):.4g} to {max(rewards):.4g}")
    todo = "widen --reward.clip_range, or scale the reward"
    return Finding(Stage.REWARD, Severity.WARNING, "Rewards are clipped", tuple(evidence), todo)


@check("attempts/masked_truncated")
def masked_attempts(run: Run) -> Finding | None:
    """Attempts that a limit cut off and that are therefore left out."""
    share = run.per_attempt("attempts/masked_truncated")
    if not len(share) or share.late < MASKED:
        return None
    evidence = (f"{share.late:.0%} of the attempts were cut off and masked in {share.late_steps}",)
    todo = "raise the limit that cuts them off (--rollout.max_new_tokens, --data.max_len, --rollout.max_turns)"
    return Finding(Stage.ADVANTAGES, Severity.WARNING, "Most attempts are masked as truncated", evidence, todo)


def _compares_siblings(run: Run) -> bool:
    return run.setting("algo.advantage.estimator") not in NEEDS_NO_SPREAD


def _why_alike(run: Run, reward: Series, spread: Series) -> tuple[str, str]:
    """Return why rewards are alike, and what to do."""
    rewards = [stored.trajectory.reward for stored in run.train if stored.trajectory.is_valid]
    top = max(rewards, default=None)
    if len(spread) and spread.late > ALL_ALIKE:
        return (
            "tasks differ, the attempts at one task do not",
            "raise --rollout.temperature or --rollout.n_samples_per_prompt, give tasks of middling difficulty "
            "(--algo.dynamic_filtering_enable leaves decided ones out), and look at the entropy",
        )
    if len(reward) and top is not None and reward.late == top and reward.late > min(0.0, *rewards):
        return f"all score {reward.late:.3g}, the highest seen: too easy, or solved", "give harder tasks, or stop here"
    if len(reward) and reward.late == 0:
        return (
            "all score 0: too hard, or the reward never comes",
            "score a right answer by hand to see that the reward can be earned at all; then give easier tasks, partial "
            "reward, or a model that succeeds now and then",
        )
    known = f"all score {reward.late:.3g}" if len(reward) else "all score alike"
    return f"{known}: the reward does not tell attempts apart", "look at the reward function with two unlike answers"
