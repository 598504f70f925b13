"""Checks of weight versions and of the correction between engine and learner."""

from .finding import Finding, Severity, Stage, check
from .folder import Run
from .mismatch import measure
from .series import span

STUCK_STEPS = 3
"""Updates in a row without a new version; where syncs are rarer than updates one or two may pass."""
EFFECTIVE = 0.5
"""Effective share of the weighted tokens; runs that learn well stay above 0.95."""
OUTSIDE = 0.1
"""Share of ratios outside the correction's bounds, or of tokens it leaves out; runs that learn well stay below 0.01."""
UNMOVED = 1e-6
"""Ratios nearer to 1 than this are 1."""


@check("version", "policy/grad_norm")
def version_stands_still(run: Run) -> Finding | None:
    """Updates that were never published."""
    stuck: list[int] = []
    longest: list[int] = []
    for before, row in zip(run.rows, run.rows[1:], strict=False):
        has_update = bool(row.get("policy/grad_norm")) and row.get("policy/lr") != 0
        if "version" not in row or "version" not in before or row["version"] != before["version"]:
            stuck = []
        elif has_update:
            stuck = [*stuck, int(row["step"])]
            longest = max(longest, stuck, key=len)
    if len(longest) < STUCK_STEPS:
        return None
    evidence = (f"updates were taken in {span(longest)}, and the version stayed {run.rows[-1]['version']}",)
    todo = "see why no weights are sent: the engines sample from old ones, whose rewards no longer follow the learner"
    return Finding(Stage.WEIGHT_SYNC, Severity.PROBLEM, "Weights change and are not published", evidence, todo)


@check("is_weight/effective_size or mismatch/outside_bounds or is_weight/masked")
def correction(run: Run) -> Finding | None:
    """A correction that leaves little of the data."""
    size, outside = run.series("is_weight/effective_size"), run.series("mismatch/outside_bounds")
    masked = run.series("is_weight/masked")
    is_small = len(size) and size.late < EFFECTIVE
    if not (is_small or any(len(share) and share.late > OUTSIDE for share in (outside, masked))):
        return None
    evidence = [f"effective share of the weighted tokens {size.late:.2f} in {size.late_steps}"] if len(size) else []
    evidence += [f"{outside.late:.0%} of the ratios outside the bounds"] if len(outside) else []
    evidence += [f"{masked.late:.0%} of the tokens left out by it"] if len(masked) else []
    bounds = run.setting("algo.advantage.is_correction_threshold")
    evidence += [f"--algo.advantage.is_correction_threshold {bounds}"] if bounds else []
    todo = "find the cause of the mismatch (see the findings on engine and weight sync); the correction only hides it"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "The correction leaves little of the data", tuple(evidence), todo)


@check("mismatch/kl_k3/lag_1 or mismatch/kl_k3/lag_2", "policy/ratio_max", "algo.advantage.is_correction_level")
def uncorrected_staleness(run: Run) -> Finding | None:
    """Old data whose ratio is 1 all the same: clipped around a policy that never sampled it, and not corrected."""
    lags, ratio = measure(run).by_lag, run.series("policy/ratio_max")
    is_off = run.setting("algo.advantage.is_correction_level") in ("off", False)  # YAML reads a bare off as false
    if not is_off or not any(lag > 0 for lag in lags) or max(ratio.values) > 1 + UNMOVED:
        return None
    evidence = (
        f"tokens are up to {max(lags)} versions old, and policy/ratio_max is {max(ratio.values):g} at every step",
        "--algo.advantage.is_correction_level off",
    )
    todo = "set --algo.advantage.is_correction_level token, or let the rollout's own logprobs be the old policy's"
    return Finding(Stage.OPTIMISER, Severity.PROBLEM, "Old data is learnt from as if it were new", evidence, todo)
