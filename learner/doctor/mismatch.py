"""How engine and learner differ on the tokens that were sampled, and what tells the causes apart.

log-ratio = learner's logprob less the engine's. Its causes leave different marks:

    rounding            small, on both sides of 0, the same at every step and for every age of the weights
    truncated sampling  all on one side: the engine divides by the mass it keeps, the ratio is that mass, and kl_k3
                        (what is left of kl_k1 when the mean ratio is not 1) is small beside kl_k1
    temperature         large from the first step on, the same at every step and age
    old weights         grows with the number of versions between sampling and learning; near rounding at none
    lost weights        grows from step to step although the weights are said to be current
    stale keys/values   the same, but only as long as a process lives: a restart empties the cache
"""

from dataclasses import dataclass
from itertools import pairwise

from .folder import Run
from .series import Series, rank_correlation

LAG = "mismatch/kl_k3/lag_"
LONGEST = "_and_more"  # the longest lag stands for all beyond it too
CURRENT = f"{LAG}0"

ROUNDING = {"bf16": (0.1, 1e-2), "fp16": (2e-2, 1e-3), "fp32": (1e-3, 1e-5)}
"""Most that rounding explains, as (abs_diff, kl_k3). Usual abs_diff: bf16 0.01 to 0.06, fp16 an eighth of that (three
bits more), fp32 1e-5; kl_k3 is about half its square, with a tail of rare tokens. Twice as much and more is allowed."""
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}

ONE_SIDED = 0.5
"""kl_k1 by abs_diff: 1 where all log-ratios are negative, about 0.1 for rounding."""
KEEPS_NO_MASS = 0.5
"""kl_k3 by kl_k1: 1 where the engine may sample all that the learner may (its mean ratio is 1), under 0.1 where a
nucleus of 0.9 is kept. It tells truncation from another temperature and from other weights."""
ONE_SIDED_FLOOR = 0.1
"""kl_k1 by the most of abs_diff that rounding explains, below which its sign says nothing."""
GROWS, MONOTONE, FEWEST_STEPS = 3.0, 0.8, 6
"""Late by early kl_k3, rank correlation with the step, and steps, from which on it grows and does not wander."""
RESETS = 3.0
"""kl_k3 before a restart by that after it."""
AGES = 3.0
"""kl_k3 of the oldest tokens by that of the freshest, from which on age matters."""


@dataclass(frozen=True)
class Growth:
    """A mismatch of current weights that grows from step to step.

    `resets` says whether a restart brought it down; None when the run was not restarted while it was high.
    """

    part: Series
    resets: bool | None


@dataclass(frozen=True)
class Mismatch:
    """The measures of one run.

    Attributes:
        abs_diff, k1, k3, ratio_mean: Over all tokens.
        current: kl_k3 of tokens sampled with the newest weights; of all tokens where ages are not told apart.
        by_lag: Mean kl_k3 by how many versions old the tokens were.
        restarts: The first step after each restart.
        dtype: The coarser of engine's and learner's; None when it is not known, and bf16's bounds hold.
        most_abs_diff, most_k3: What rounding explains in this dtype.
    """

    abs_diff: Series
    k1: Series
    k3: Series
    ratio_mean: Series
    current: Series
    by_lag: dict[int, float]
    restarts: tuple[int, ...]
    dtype: str | None
    most_abs_diff: float
    most_k3: float

    @property
    def is_one_sided(self) -> bool:
        """Whether the learner gives nearly every token less than the engine, beyond rounding."""
        if not len(self.k1) or not len(self.abs_diff) or not len(self.k3):
            return False
        return (
            min(self.k1.early, self.k1.mean) >= ONE_SIDED_FLOOR * self.most_abs_diff
            and self.k1.mean >= ONE_SIDED * self.abs_diff.mean
            and self.k1.early >= ONE_SIDED * self.abs_diff.early
            and self.k3.mean <= KEEPS_NO_MASS * self.k1.mean
        )

    @property
    def is_large_from_the_start(self) -> bool:
        """Whether more than rounding shows before anything was learnt."""
        if self.by_lag:
            return len(self.current) > 0 and self.current.early > self.most_k3
        return len(self.abs_diff) > 0 and self.abs_diff.early > self.most_abs_diff

    @property
    def grows_with_age(self) -> bool:
        """Whether older tokens differ more, from near rounding at the freshest on."""
        lags, values = list(self.by_lag), list(self.by_lag.values())
        if len(lags) < 2 or values[-1] <= self.most_k3 or (lags[0] == 0 and values[0] > self.most_k3):
            return False
        return values[-1] >= AGES * values[0] and rank_correlation(lags, values) >= MONOTONE

    @property
    def growth(self) -> Growth | None:
        """Return how the mismatch of current weights grows, if it does, in the longest part without a restart."""
        edges = [0, *self.restarts]
        parts = [self.current.between(a, b) for a, b in zip(edges, [*edges[1:], float("inf")], strict=True)]
        growing = [part for part in parts if self._grows(part)]
        if not growing:
            return None
        pairs = [(a, b) for a, b in pairwise(parts) if len(a) and len(b) and self._grows(a)]
        resets = None if not pairs else any(a.late >= RESETS * b.values[0] for a, b in pairs)
        return Growth(max(growing, key=len), resets)

    def _grows(self, part: Series) -> bool:
        return (
            len(part) >= FEWEST_STEPS
            and part.late > self.most_k3
            and part.late >= GROWS * part.early
            and part.rank_correlation >= MONOTONE
        )


def measure(run: Run) -> Mismatch:
    """Return what a run's metrics say about engine and learner."""
    names = {name for row in run.rows for name in row if name.startswith(LAG)}
    ages = {name: name.removeprefix(LAG).removesuffix(LONGEST) for name in names}
    lags = {int(age): run.series(name) for name, age in ages.items() if age.isdigit()}
    by_lag = {lag: lags[lag].mean for lag in sorted(lags) if len(lags[lag])}
    dtype = _dtype(run)
    most_abs_diff, most_k3 = ROUNDING[dtype or "bf16"]
    return Mismatch(
        abs_diff=run.series("mismatch/abs_diff"),
        k1=run.series("mismatch/kl_k1"),
        k3=run.series("mismatch/kl_k3"),
        ratio_mean=run.series("mismatch/ratio_mean"),
        current=run.series(CURRENT) if by_lag else run.series("mismatch/kl_k3"),
        by_lag=by_lag,
        restarts=_restarts(run),
        dtype=dtype,
        most_abs_diff=most_abs_diff,
        most_k3=most_k3,
    )


def samplings(run: Run) -> dict[str, set[float]]:
    """Return temperature, top_p, top_k and min_p as training episodes were sampled, else as they are configured."""
    used: dict[str, set[float]] = {}
    for stored in run.train:
        for sequence in stored.trajectory.sequences:
            for sampling in sequence.samplings.values():
                for name in ("temperature", "top_p", "top_k", "min_p"):
                    used.setdefault(name, set()).add(float(getattr(sampling, name)))
    if not used:
        known = {name: run.number(f"rollout.{name}") for name in ("temperature", "top_p", "top_k", "min_p")}
        used = {name: {value} for name, value in known.items() if value is not None}
    return used


def truncations(run: Run) -> dict[str, float] | None:
    """Return which truncations of the sampling are on; None when that is not known."""
    used = samplings(run)
    top_p, top_k, min_p = (used.get(name, set()) for name in ("top_p", "top_k", "min_p"))
    found = {"top_p": min(top_p, default=1.0), "top_k": max(top_k, default=-1.0), "min_p": max(min_p, default=0.0)}
    is_on = {"top_p": found["top_p"] < 1, "top_k": found["top_k"] > 0, "min_p": found["min_p"] > 0}
    return {name: value for name, value in found.items() if is_on[name]} if used.get("top_p") else None


def _dtype(run: Run) -> str | None:
    names = [run.setting("ds.param_dtype"), run.setting("vllm.dtype")]
    known = [DTYPES.get(name, name) for name in names if isinstance(name, str)]
    return next((name for name in ROUNDING if name in known), None)


def _restarts(run: Run) -> tuple[int, ...]:
    """Return the first step of each part of the run but the first."""
    parts = run.series("part")
    pairs = zip(parts.values, parts.values[1:], parts.steps[1:], strict=False)
    return tuple(step for before, after, step in pairs if after > before)
