"""Checks of the optimiser: gradients, learning rate, entropy, distance to the reference, the critic."""

import math

from .finding import Finding, Severity, Stage, check
from .folder import Run
from .series import span

ZERO_GRADIENT = 1e-8
"""A norm below this moves nothing in any dtype."""
SPIKE = 10.0
"""A norm so many times the median is a spike; runs that learn well stay within 3."""
GROWN = 10.0
"""Late norm by early norm; runs that learn well double or triple it as the policy sharpens."""
CLIPPED_SHARE, CLIPPED_FACTOR = 0.9, 10.0
"""Adam forgives a gradient that is always clipped a little; at ten times the bound steps no longer weigh alike."""
SCALE_STEPS = 5
"""Steps in which fp16's loss scale, which begins high, may come down by overflows."""
OVERFLOWS = 0.1
"""Share of later steps with an overflow."""
ENTROPY_LOST = 0.1
"""Late entropy by early entropy; runs that learn well end at 0.15 to 0.3."""
ENTROPY_GROWN, ENTROPY_GAIN = 2.0, 1.0
"""Entropy that doubles and gains a nat: the policy is dissolving into noise."""
SIGNAL_LEFT = 0.6
"""Share of attempts without signal below which a low entropy does no harm yet."""
FAR = 0.5
"""Nats per token from the reference; a run with a working KL stays below 0.1."""
KL_STEP = 0.1
"""Nats per token moved within one step (approx_kl); PPO's usual early-stopping bound is 0.01 to 0.05."""
CLIP_FRACTION = 0.3
"""Share of tokens whose ratio is clipped; usual is below 0.2."""
LATE_WARM_UP = 0.5
"""Share of the run spent warming up."""


@check("policy/grad_norm")
def no_gradient(run: Run) -> Finding | None:
    """Updates with gradient 0."""
    norms = run.series("policy/grad_norm")
    if norms.late > ZERO_GRADIENT:
        return None
    evidence = (f"gradient norm {norms.late:.2g} in {norms.late_steps}, {norms.early:.2g} at first",)
    todo = "look at advantage/abs_max and at what the correction leaves; with LoRA, at whether the adapters are trained"
    return Finding(Stage.OPTIMISER, Severity.PROBLEM, "The gradient is zero", evidence, todo)


@check("policy/grad_norm")
def gradient_spikes(run: Run) -> Finding | None:
    """Norms far above the usual, or growing without end."""
    norms = run.series("policy/grad_norm")
    usual = norms.median
    spikes = norms.where(SPIKE * usual) if usual > ZERO_GRADIENT else ()
    grows = norms.rises and norms.late >= GROWN * norms.early
    if not (grows or spikes):
        return None
    largest = max(norms.values)
    at = norms.steps[norms.values.index(largest)]
    evidence = [
        f"median {usual:.3g}, largest {largest:.3g} at step {at}",
        f"{norms.early:.3g} at first, {norms.late:.3g} late",
    ]
    if spikes:
        evidence.append(f"{SPIKE:g} times the median or more: {span(spikes)}")
    todo = "lower --actor.adam.lr or --actor.max_norm; read the episodes of those steps for odd lengths or rewards"
    title = "The gradient norm explodes" if grows else "The gradient norm has spikes"
    return Finding(Stage.OPTIMISER, Severity.PROBLEM if grows else Severity.WARNING, title, tuple(evidence), todo)


@check("policy/grad_norm", "actor.max_norm")
def always_clipped(run: Run) -> Finding | None:
    """Gradients that are cut to a small part of themselves at every step."""
    norms, bound = run.series("policy/grad_norm"), run.number("actor.max_norm") or 0.0
    share = len(norms.where(bound)) / len(norms)
    if bound <= 0 or share < CLIPPED_SHARE or norms.median < CLIPPED_FACTOR * bound:
        return None
    evidence = (f"median norm {norms.median:.3g}, --actor.max_norm {bound:g}; above it in {share:.0%} of the steps",)
    todo = "raise --actor.max_norm, or scale rewards and losses down"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "Every gradient is clipped hard", evidence, todo)


@check("policy/overflows")
def overflows(run: Run) -> Finding | None:
    """Updates of fp16 that were skipped since the gradients overflowed."""
    late = [row for row in run.rows if row["step"] > run.rows[0]["step"] + SCALE_STEPS - 1]
    steps = tuple(int(row["step"]) for row in late if row.get("policy/overflows"))
    if not late or len(steps) / len(late) < OVERFLOWS:
        return None
    evidence = (f"{len(steps)} of {len(late)} steps after the first {SCALE_STEPS}: {span(steps)}",)
    severity = Severity.PROBLEM if len(steps) == len(late) else Severity.WARNING
    return Finding(Stage.OPTIMISER, severity, "Gradients overflow in fp16", evidence, "use --ds.param_dtype bf16")


@check("policy/entropy")
def entropy(run: Run) -> Finding | None:
    """A policy that has stopped trying anything, or dissolves into noise."""
    values = run.series("policy/entropy")
    evidence = [f"entropy {values.early:.3g} nats per token at first, {values.late:.3g} in {values.late_steps}"]
    if values.rises and values.late > max(ENTROPY_GROWN * values.early, values.early + ENTROPY_GAIN):
        todo = "lower the learning rate or --actor.entropy_coef; look at the mismatch between engine and learner"
        return Finding(Stage.OPTIMISER, Severity.PROBLEM, "Entropy explodes", tuple(evidence), todo)
    alike = run.share("attempts/without_signal", "attempts/valid")
    if not values.falls or values.late > ENTROPY_LOST * values.early or (len(alike) and alike.late < SIGNAL_LEFT):
        return None
    if len(alike):
        evidence.append(f"{alike.late:.0%} of the attempts have siblings of equal reward in {alike.late_steps}")
    todo = "raise --actor.entropy_coef or the upper clip range (--actor.eps_clip_low_high), or lower the learning rate"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "Entropy has collapsed", tuple(evidence), todo)


@check("kl/reference")
def far_from_reference(run: Run) -> Finding | None:
    """A policy that runs away from the model it began as."""
    kl = run.series("kl/reference")
    if not kl.rises or kl.late < FAR:
        return None
    coef = run.number("algo.kl.init_coef")
    known = "" if coef is None else f"; --algo.kl.init_coef {coef:g}"
    evidence = (f"{kl.early:.3g} nats per token at first, {kl.late:.3g} in {kl.late_steps}{known}",)
    todo = "raise --algo.kl.init_coef, or lower the learning rate"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "KL to the reference runs away", evidence, todo)


@check("policy/approx_kl or policy/clip_fraction")
def large_updates(run: Run) -> Finding | None:
    """Steps that move the policy further than its clipping is made for."""
    kl, clipped = run.series("policy/approx_kl"), run.series("policy/clip_fraction")
    far = len(kl) and kl.median > KL_STEP
    if not (far or (len(clipped) and clipped.median > CLIP_FRACTION)):
        return None
    evidence = [f"approx_kl {kl.median:.3g} on average, {max(kl.values):.3g} at most"] if len(kl) else []
    evidence += [f"{clipped.median:.0%} of the tokens clipped in a usual step"] if len(clipped) else []
    todo = "lower --actor.adam.lr or --train.max_epochs, or raise --train.batch_size for fewer updates per step"
    return Finding(Stage.OPTIMISER, Severity.WARNING, "Single steps move the policy far", tuple(evidence), todo)


@check("policy/lr")
def learning_rate(run: Run) -> Finding | None:
    """A rate of 0, or a warm-up that never ends."""
    rates = run.series("policy/lr")
    if max(rates.values) == 0:
        todo = "set --actor.adam.lr (--actor.muon.lr for the matrices under muon)"
        return Finding(Stage.OPTIMISER, Severity.PROBLEM, "The learning rate is 0", (f"in {span(rates.steps)}",), todo)
    ratio = run.number("actor.lr_warmup_ratio")
    only_rises = len(rates) > 2 and all(a < b for a, b in zip(rates.values, rates.values[1:], strict=False))
    if not (run.is_complete and only_rises) and (ratio is None or ratio <= LATE_WARM_UP):
        return None
    evidence = [f"{rates.values[0]:.2g} at step {rates.steps[0]}, {rates.values[-1]:.2g} at step {rates.steps[-1]}"]
    evidence += [f"--actor.lr_warmup_ratio {ratio:g}"] if ratio is not None else []
    title = "The warm-up is longer than the run" if only_rises else "Most of the run is warm-up"
    return Finding(Stage.OPTIMISER, Severity.WARNING, title, tuple(evidence), "lower --actor.lr_warmup_ratio")


@check("step")
def not_finite(run: Run) -> Finding | None:
    """Metrics that are NaN or infinite."""
    bad: dict[str, list[int]] = {}
    for row in run.rows:
        for name, value in row.items():
            if isinstance(value, float) and not math.isfinite(value):
                bad.setdefault(name, []).append(int(row["step"]))
    if not bad:
        return None
    evidence = tuple(f"{name} in {span(steps)}" for name, steps in sorted(bad.items()))
    todo = "go on from a checkpoint before the first of these steps, with a lower learning rate"
    return Finding(Stage.OPTIMISER, Severity.PROBLEM, "Numbers are not finite", evidence, todo)


@check("value/explained_variance or critic/explained_variance")
def critic(run: Run) -> Finding | None:
    """A critic that predicts no better than a constant."""
    named = [run.series(name) for name in ("value/explained_variance", "critic/explained_variance")]
    explained = max(named, key=len)
    if explained.late > 0:
        return None
    evidence = (f"explained variance {explained.late:.3g} in {explained.late_steps}, {explained.early:.3g} at first",)
    todo = "raise --critic.adam.lr, give it steps of its own first (--critic.freezing_steps), or use a group estimator"
    return Finding(Stage.ADVANTAGES, Severity.WARNING, "The critic explains nothing", evidence, todo)
