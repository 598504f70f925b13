"""Checks of engine against learner, one for each cause; no two of them claim the same marks."""

import math

from .finding import Finding, Severity, Stage, check
from .folder import Run
from .mismatch import Growth, Mismatch, measure, samplings, truncations
from .series import Series, span

SAME_AS_REFERENCE = 2.0
"""The mismatch and the KL to the reference are one number, if the engine still samples from the first weights; noise
and unlike estimators may part them by so much."""
UNLIKE_REFERENCE = 5.0
"""Beyond this factor the engine surely does not sample from the first weights."""
TEMPERATURE = 1e-6
"""Temperatures nearer to 1 than this are 1."""


@check("mismatch/kl_k1", "mismatch/kl_k3", "mismatch/abs_diff")
def truncated_sampling(run: Run) -> Finding | None:
    """Ratios below 1 throughout: the engine divides by the mass that top-p, top-k or min-p keep."""
    mismatch, on = measure(run), truncations(run)
    if not mismatch.is_one_sided:
        return None
    kept = math.exp(-mismatch.k1.mean)
    evidence = [
        f"kl_k1 {mismatch.k1.mean:.3g} is {mismatch.k1.mean / mismatch.abs_diff.mean:.0%} of abs_diff "
        f"{mismatch.abs_diff.mean:.3g}: the learner gives most tokens less than the engine (rounding: about 10%)",
        f"so the engine keeps {kept:.3f} of the mass, on geometric average"
        + (f"; mean ratio {mismatch.ratio_mean.mean:.3f}" if len(mismatch.ratio_mean) else ""),
    ]
    if on:
        named = ", ".join(f"{name} {value:g}" for name, value in on.items())
        evidence.append(f"episodes were sampled with {named}")
        todo = f"switch {', '.join(on)} off; or give the learner the same support"
    else:
        known = "no truncation is asked for" if on is not None else "the sampling options are not known"
        evidence.append(f"{known}; the engine may have its own (generation_config.json of the model, a grammar)")
        todo = "look for top_p, top_k, min_p or a grammar that the engine applies by itself, and switch it off"
    return Finding(
        Stage.ENGINE, Severity.PROBLEM, "The engine samples from a truncated distribution", tuple(evidence), todo
    )


@check("mismatch/abs_diff or mismatch/kl_k3")
def temperature(run: Run) -> Finding | None:
    """A temperature that engine and learner do not apply alike."""
    mismatch = measure(run)
    used = samplings(run).get("temperature", set())
    if not _is_constant(mismatch) or all(abs(value - 1) <= TEMPERATURE for value in used):
        return None
    evidence = (
        f"episodes were sampled at temperature {', '.join(f'{value:g}' for value in sorted(used))}",
        *_size(mismatch),
        *_dtypes(run),
        "large from the first step on and not growing with the steps: no matter of lost weights",
    )
    todo = (
        "take both logprobs of log-softmax(logits / temperature); repeat a step at --rollout.temperature 1: "
        "if the mismatch falls to rounding, it is the temperature"
    )
    title = "Engine and learner treat the temperature differently"
    return Finding(Stage.ENGINE, Severity.PROBLEM, title, evidence, todo)


@check("mismatch/abs_diff or mismatch/kl_k3")
def coarse_numerics(run: Run) -> Finding | None:
    """More than rounding from the first step on, at temperature 1 and without truncation."""
    mismatch = measure(run)
    used = samplings(run).get("temperature", set())
    if not _is_constant(mismatch) or any(abs(value - 1) > TEMPERATURE for value in used):
        return None
    evidence = [*_size(mismatch), *_dtypes(run), "large from the first step on, not growing, on both sides of 0"]
    if not used:
        evidence.append("the temperature is not known; one that is applied on one side only looks the same")
    todo = (
        "compute both in one dtype (--vllm.dtype, --ds.param_dtype; fp32 shows whether it is rounding); if it stays, "
        "the engine's model differs: quantised weights or keys, another attention or rope setting, another vocabulary"
    )
    title = "Engine and learner compute different numbers for the same weights"
    return Finding(Stage.ENGINE, Severity.PROBLEM, title, tuple(evidence), todo)


@check("mismatch/kl_k3/lag_0 or mismatch/kl_k3/lag_1", "mismatch/kl_k3")
def staleness(run: Run) -> Finding | None:
    """A mismatch that grows with the age of the weights that sampled."""
    mismatch = measure(run)
    if not mismatch.grows_with_age or mismatch.growth is not None:
        return None
    lags = ", ".join(f"{lag} versions: {value:.3g}" for lag, value in mismatch.by_lag.items())
    level, size = run.setting("algo.advantage.is_correction_level"), run.series("is_weight/effective_size")
    evidence = [f"kl_k3 by age: {lags}", f"rounding explains up to {mismatch.most_k3:g}"]
    evidence += ["--algo.advantage.is_correction_level " + (level or "off")] if level is not None else []
    evidence += [f"effective share of the weighted tokens {size.median:.2f}"] if len(size) else []
    is_corrected = level not in (None, "off", False)  # YAML reads a bare off as false
    severity = Severity.NOTE if is_corrected else Severity.WARNING
    todo = "allow less lag between sampling and learning, or sync weights more often; keep the correction on"
    return Finding(Stage.ROLLOUT, severity, "Episodes are old when they are learnt from", tuple(evidence), todo)


@check("mismatch/kl_k3")
def growing_mismatch(run: Run) -> Finding | None:
    """A mismatch of current weights that grows step by step: they never arrive, or keys and values are old."""
    mismatch = measure(run)
    growth = mismatch.growth
    if growth is None:
        return None
    part = growth.part
    ages = "of the newest weights" if mismatch.by_lag else "(ages are not told apart)"
    evidence = [
        f"kl_k3 {ages} grows from {part.early:.3g} to {part.late:.3g} in {span(part.steps)} "
        f"(rank correlation with the step {part.rank_correlation:.2f}; rounding explains up to {mismatch.most_k3:g})"
    ]
    if growth.resets is not None:
        at = span(mismatch.restarts)
        evidence.append(
            f"the run was restarted before {at}, and it {'fell' if growth.resets else 'did not fall'} there"
        )
    verdicts = [*_weights_are_lost(run, growth), *_keys_are_stale(run, growth, mismatch)]
    evidence += [text for _, text in verdicts]
    causes = {cause for cause, _ in verdicts}
    if causes == {"weights"}:
        todo = "compare the engine's logprobs of a fixed text before and after an update; look at the tensors' names"
        todo += _lora(run)
        title = "Weight updates do not reach the engine"
        return Finding(Stage.WEIGHT_SYNC, Severity.PROBLEM, title, tuple(evidence), todo)
    if causes == {"keys"}:
        todo = "empty the prefix cache at each update, or set --vllm.enable_prefix_caching false"
        title = "The engine serves keys and values of old weights"
        return Finding(Stage.ENGINE, Severity.PROBLEM, title, tuple(evidence), todo)
    todo = (
        "the metrics cannot tell the two apart: run some steps with --vllm.enable_prefix_caching false; if the growth "
        f"is gone it was the cache, if it stays the updates are lost{_lora(run)}"
    )
    title = "Weight updates are lost, or the engine serves keys and values of old weights"
    return Finding(Stage.WEIGHT_SYNC, Severity.PROBLEM, title, tuple(evidence), todo)


def _weights_are_lost(run: Run, growth: Growth) -> list[tuple[str, str]]:
    """Return what speaks for one cause alone and is not about the cache."""
    found: list[tuple[str, str]] = []
    if run.setting("vllm.enable_prefix_caching") is False:
        found.append(("weights", "prefix caching is off, so it cannot be old keys and values"))
    if growth.resets is False:
        found.append(("weights", "a restart empties the cache, so it cannot be old keys and values"))
    return found


def _keys_are_stale(run: Run, growth: Growth, mismatch: Mismatch) -> list[tuple[str, str]]:
    """Compare with the KL to the reference: what an engine with the first weights differs by, and no other."""
    name = {"k1": "kl_k1"}.get(run.setting("algo.kl.estimator"), "kl_k3")
    other = mismatch.k1 if name == "kl_k1" else growth.part
    reference = run.series("kl/reference").between(growth.part.steps[0], growth.part.steps[-1] + 1)
    other = other.between(growth.part.steps[0], growth.part.steps[-1] + 1)
    if not len(reference) or not len(other) or mismatch.restarts:
        return []  # after a restart the engine has other first weights than the reference
    drift, seen = abs(reference.late), abs(other.late)
    numbers = f"late KL to the reference {drift:.3g}, late {name} of the mismatch {seen:.3g}"
    if drift and 1 / SAME_AS_REFERENCE <= seen / drift <= SAME_AS_REFERENCE:
        return [("weights", f"{numbers}: alike, so the engine still samples from the first weights")]
    if drift > UNLIKE_REFERENCE * seen:
        return [("keys", f"{numbers}: the engine has moved with the learner, so weights do arrive")]
    return [("", f"{numbers}: this tells nothing")] if drift else []


def _lora(run: Run) -> str:
    rank = run.number("ds.lora.rank")
    sync = run.setting("ds.lora.sync")
    return f"; with LoRA (rank {rank:g}, sync {sync}) see that the adapters are in what is sent" if rank else ""


def _is_constant(mismatch: Mismatch) -> bool:
    """Whether it is large from the start and no mark of another cause is on it."""
    return mismatch.is_large_from_the_start and not mismatch.is_one_sided and mismatch.growth is None


def _dtypes(run: Run) -> list[str]:
    ours, theirs = run.setting("ds.param_dtype"), run.setting("vllm.dtype")
    return [] if theirs in (None, ours) else [f"the engine computes in {theirs}, the learner in {ours}"]


def _size(mismatch: Mismatch) -> list[str]:
    def course(name: str, series: Series, most: float) -> str:
        return f"{name} {series.early:.3g} at first, {series.late:.3g} late; rounding explains up to {most:g}"

    dtype = f" in {mismatch.dtype}" if mismatch.dtype else " (dtype not known: bf16 assumed)"
    sizes = []
    if len(mismatch.abs_diff):
        sizes.append(course("abs_diff", mismatch.abs_diff, mismatch.most_abs_diff) + dtype)
    if mismatch.by_lag:
        sizes.append("kl_k3 by age: " + ", ".join(f"{lag}: {value:.3g}" for lag, value in mismatch.by_lag.items()))
    return sizes
