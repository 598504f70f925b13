"""Checks of how much is sampled, and how much of it is trained on."""

from .finding import Finding, Severity, Stage, check
from .folder import TRAIN_EPISODES, Run

SHRUNK, GROWN = 0.2, 4.0
"""Late tokens per attempt by early ones: a model that learns to answer halves or doubles its answers."""
FEWEST_ACTIONS = 0.02
"""Share of an episode's tokens that the model sampled; below it a forward pass is nearly all context."""
EMPTY_TOKENS = 1.5
"""Tokens per attempt at and below which answers are nothing but the end of the turn."""


@check("rollout/tokens")
def lengths(run: Run) -> Finding | None:
    """Answers that collapse to nothing or grow without end."""
    tokens = run.per_attempt("rollout/tokens")
    if not len(tokens):
        return None
    factor = tokens.late / tokens.early if tokens.early else 1.0
    reward = run.series("reward/mean")
    evidence = [f"{tokens.early:.3g} tokens per attempt at first, {tokens.late:.3g} in {tokens.late_steps}"]
    if len(reward):
        evidence.append(f"mean reward {reward.early:.3g} at first, {reward.late:.3g} at the end")
    if tokens.late <= EMPTY_TOKENS or (tokens.falls and factor <= SHRUNK and not reward.rises):
        todo = "read late episodes: the reward may favour silence, or the end-of-turn token may be sampled at once"
        return Finding(Stage.ROLLOUT, Severity.WARNING, "Answers collapse in length", tuple(evidence), todo)
    if tokens.rises and factor >= GROWN:
        todo = "add a penalty for length (--reward.overlong_buffer_len), or check that nothing rewards rambling"
        return Finding(Stage.ROLLOUT, Severity.WARNING, "Answers grow without end", tuple(evidence), todo)
    return None


@check(TRAIN_EPISODES)
def few_actions(run: Run) -> Finding | None:
    """Episodes in which almost nothing was sampled, so that almost nothing is trained on."""
    valid = [stored.trajectory for stored in run.train if stored.trajectory.is_valid]
    actions = sum(trajectory.num_actions for trajectory in valid)
    tokens = sum(len(sequence) for trajectory in valid for sequence in trajectory.sequences)
    if not tokens or actions / tokens >= FEWEST_ACTIONS:
        return None
    forks = sum(len(trajectory.sequences) - 1 for trajectory in valid)
    evidence = [f"{actions} of {tokens} tokens in {len(valid)} episodes were sampled ({actions / tokens:.1%})"]
    if forks:
        evidence.append(f"contexts branched {forks} times; each branch repeats its context")
    severity = Severity.WARNING if actions else Severity.PROBLEM
    todo = "shorten prompts and observations; or let the model answer at greater length"
    return Finding(Stage.ROLLOUT, severity, "Hardly any token is trained on", tuple(evidence), todo)
