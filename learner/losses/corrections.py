"""Importance weights that correct for the engine sampling from a slightly different policy than the learner's.

The same weights give other logprobs in the engine (other kernels, other precision) and older weights give others
still; without correction the gradient is that of neither policy. A level says whose ratio learner / engine counts,
a mode what happens outside the bounds, a gate what the bounds of `mask` are put to. Ratios stay in log space until
the last step and are bounded there at +-20: no input gives NaN or infinity.

A token that was sampled from another distribution than softmax(logits / temperature), under a grammar, a penalty or a
truncation, has no ratio: its engine logprob is divided by the mass that was left, which the learner does not know, so
that learner / engine would be that mass for equal weights, and next to nothing for a sequence. Such tokens enter no sum
or mean of a sequence and no statistic; they weigh 1, or as much as the others of their sequence at levels of sequences.
(Other implementations know no such tokens; DeepSeek-V3.2, arXiv:2512.02556, keeps the mask of a truncation.)

A rejected token has weight 0 and stays in the denominator of the loss (as in OpenRLHF, TRL and verl's IcePop; verl's
`rollout_rs` takes it out). So has a token whose engine logprob is unknown (NaN; the executors refuse such turns), and
with levels of whole sequences its sequence (TRL gives it weight 1, OpenRLHF NaN).
"""

# N tokens

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...registry import Registry
from ..metrics import Mean, Metrics
from .mismatch import mismatch_metrics, weight_metrics
from .ratios import log_ratio, ratio, widened
from .sequence_sums import sequence_mean, sequence_sum

if TYPE_CHECKING:
    from torch import Tensor

OLDER_NAMES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("geometric", "gate")}
"""Level and mode of OpenRLHF 0.11.0's `is_correction_type`; its `tis` clamps at both ends."""


@dataclass(frozen=True)
class CorrectionInputs:
    """Two policies' logprobs of the same tokens.

    Attributes:
        logprobs_N: Of the learner's policy that starts the step (old, or current), any gradient ignored.
        rollout_logprobs_N: Of the engine's policy; anything off actions, NaN where unknown.
        is_action_N: Which tokens count.
        sequence_N: int64, the sequence each token belongs to, from 0.
        num_sequences: How many there are, for corrections of whole sequences.
        bounds: Lower and upper bound, of the ratio or of what the gate measures.
        gating: Name in `GATES`; only `mask` has a gate.
        lags_N: int64, versions between the weights that sampled a token and the learner's; None measures no lag.
        is_shaped_N: Which tokens have no ratio, since their distribution was shaped; None for none.
    """

    logprobs_N: "Tensor"
    rollout_logprobs_N: "Tensor"
    is_action_N: "Tensor"
    sequence_N: "Tensor"
    num_sequences: int
    bounds: tuple[float, float]
    gating: str = "ratio"
    lags_N: "Tensor | None" = None
    is_shaped_N: "Tensor | None" = None

    def __post_init__(self) -> None:
        low, high = self.bounds
        if not 0 <= low <= high:
            raise ConfigError(f"bounds of an importance weight must be 0 <= low <= high, got {self.bounds}")


@dataclass(frozen=True)
class Correction:
    """What to multiply each token's loss with; detached, 1 off actions."""

    weights_N: "Tensor"
    metrics: Metrics


@dataclass(frozen=True)
class Weights:
    """Weights per token, and the ratios they were made from, before any bound; in float64."""

    weights_N: "Tensor"
    ratios_N: "Tensor"


@dataclass(frozen=True)
class Level:
    """How the log-ratios of tokens become that of a unit, and their divergences one; both per token."""

    log_ratio: Callable[[CorrectionInputs, "Tensor"], "Tensor"]
    divergence: Callable[[CorrectionInputs, "Tensor"], "Tensor"]


def _each(inputs: CorrectionInputs, values_N: "Tensor") -> "Tensor":
    return values_N


def _sum(inputs: CorrectionInputs, values_N: "Tensor") -> "Tensor":
    return sequence_sum(values_N, inputs.is_action_N, inputs.sequence_N, inputs.num_sequences)


def _mean(inputs: CorrectionInputs, values_N: "Tensor") -> "Tensor":
    return sequence_mean(values_N, inputs.is_action_N, inputs.sequence_N, inputs.num_sequences)


LEVELS: Registry[Level] = Registry("level of the importance-sampling correction")
"""Tokens alone, or sequences by product (as TRL, verl) or geometric mean (on which OpenRLHF gates its `seq`)."""

LEVELS.register("token")(Level(_each, _each))
LEVELS.register("seq")(Level(_sum, _mean))
LEVELS.register("geometric")(Level(_mean, _mean))

MODES: Registry[Callable[[CorrectionInputs, Level], Weights]] = Registry("mode of the importance-sampling correction")
"""Functions to weights per token; those of units with an unknown ratio are set to 0 afterwards."""

GATES: Registry[Callable[[CorrectionInputs, Level], "Tensor"]] = Registry("gate of the importance-sampling correction")
"""Functions to what the bounds of `mask` are put to, per token; all but `ratio` are divergences from 0 up."""


@MODES.register("truncate")
def truncate(inputs: CorrectionInputs, level: Level) -> Weights:
    """Truncate the ratio from above only (Ionides 2008; verl's TIS)."""
    ratios_N = _ratios(inputs, level)
    return Weights(ratios_N.clamp(max=inputs.bounds[1]), ratios_N)


@MODES.register("clip")
def clip(inputs: CorrectionInputs, level: Level) -> Weights:
    """Clamp the ratio at both ends (the TIS of OpenRLHF and TRL)."""
    ratios_N = _ratios(inputs, level)
    return Weights(ratios_N.clamp(*inputs.bounds), ratios_N)


@MODES.register("mask")
def mask(inputs: CorrectionInputs, level: Level) -> Weights:
    """Leave out what the gate finds outside the bounds (IcePop, arXiv:2510.18855, for tokens by ratio).

    What stays keeps its level's ratio, which the bounds hold, so no weight exceeds them. Under a divergence it keeps
    the ratio of the token at every level (FlashREINFORCE, OpenRLHF): a divergence does not bound a product of ratios.
    """
    measured_N = GATES[inputs.gating](inputs, level)
    low, high = inputs.bounds
    ratios_N = _ratios(inputs, level if inputs.gating == "ratio" else LEVELS["token"])
    return Weights(ratios_N.where((measured_N >= low) & (measured_N <= high), 0.0), ratios_N)


@MODES.register("gate")
def gate(inputs: CorrectionInputs, level: Level) -> Weights:
    """Leave out units outside the bounds, and clamp the ratios of the tokens inside (seq-mask-tis).

    OpenRLHF's `seq` / `mask` gates alike on the geometric mean and clamps nothing: weights of 148 pass a bound of 5.
    """
    unit_N, ratios_N = _ratios(inputs, level), _ratios(inputs, LEVELS["token"])
    low, high = inputs.bounds
    return Weights(ratios_N.clamp(low, high).where((unit_N >= low) & (unit_N <= high), 0.0), ratios_N)


@GATES.register("ratio")
def ratio_gate(inputs: CorrectionInputs, level: Level) -> "Tensor":
    """Measure the ratio learner / engine of the unit."""
    return _ratios(inputs, level)


@GATES.register("binary_kl")
def binary_kl_gate(inputs: CorrectionInputs, level: Level) -> "Tensor":
    """Measure KL(engine || learner) of "this token or any other", in sequences the mean over tokens (OpenRLHF).

    In float64 and never negative: in float32 rounding makes it so, and a lower bound of 0 drops sound tokens.
    """
    engine_N, learner_N = _probabilities(inputs)
    this_N = engine_N * (engine_N / learner_N).log()
    divergence_N = this_N + (1 - engine_N) * ((1 - engine_N) / (1 - learner_N)).log()
    return level.divergence(inputs, divergence_N.clamp(min=0))


@GATES.register("tv")
def tv_gate(inputs: CorrectionInputs, level: Level) -> "Tensor":
    """Measure the difference of the token's two probabilities, in sequences the mean over tokens (OpenRLHF)."""
    engine_N, learner_N = _probabilities(inputs)
    return level.divergence(inputs, (engine_N - learner_N).abs())


def check(level: str, mode: str, gating: str, bounds: tuple[float, float]) -> None:
    """Refuse names that do not exist and choices that do not go together.

    Raises:
        ConfigError: As said; UnknownNameError for names.
    """
    GATES[gating]
    if level == "off":
        return
    LEVELS[level]
    MODES[mode]
    if gating != "ratio" and mode != "mask":
        raise ConfigError(f"gating {gating!r} rejects, so its mode is 'mask', got {mode!r}")
    if gating != "ratio" and bounds[0] > 0:
        raise ConfigError(f"gating {gating!r} bounds a divergence from above only, got {bounds}; give one number")
    if mode == "gate" and level == "token":
        raise ConfigError("mode 'gate' is for sequences; for tokens 'mask' is the same")


def correct(level: str, mode: str, inputs: CorrectionInputs) -> Correction:
    """Return the weights of this level and mode, and how far apart the two policies are.

    With level "off" every weight is 1, and the mismatch is measured all the same.
    """
    check(level, mode, inputs.gating, inputs.bounds)
    action_N = inputs.is_action_N
    shaped_N = action_N & inputs.is_shaped_N if inputs.is_shaped_N is not None else action_N.new_zeros(action_N.shape)
    inputs = replace(inputs, is_action_N=action_N & ~shaped_N)  # from here on all that has a ratio
    counted_N, known_N = inputs.is_action_N, _known(inputs)
    metrics = mismatch_metrics(_log_ratio(inputs), known_N, counted_N, inputs.bounds, inputs.lags_N)
    metrics["mismatch/shaped"] = Mean(shaped_N.sum().item(), action_N.sum().item())
    ones_N = widened(inputs.logprobs_N.detach()).new_ones(action_N.shape)
    if level == "off":
        return Correction(ones_N, metrics | weight_metrics(ones_N, ones_N, counted_N))
    made = MODES[mode](inputs, LEVELS[level])
    unknown_N = LEVELS[level].divergence(inputs, (counted_N & ~known_N).double()) > 0
    weights_N = made.weights_N.where(~unknown_N, 0.0)
    metrics |= weight_metrics(weights_N, made.ratios_N, counted_N)
    has_ratio_N = LEVELS[level].divergence(inputs, counted_N.double()) > 0
    return Correction(weights_N.to(ones_N.dtype).where(action_N & has_ratio_N, 1.0), metrics)


def _known(inputs: CorrectionInputs) -> "Tensor":
    return inputs.is_action_N & ~inputs.rollout_logprobs_N.isnan()


def _log_ratio(inputs: CorrectionInputs) -> "Tensor":
    return log_ratio(inputs.logprobs_N.detach(), inputs.rollout_logprobs_N.detach(), _known(inputs)).double()


def _ratios(inputs: CorrectionInputs, level: Level) -> "Tensor":
    return ratio(level.log_ratio(inputs, _log_ratio(inputs)))


def _probabilities(inputs: CorrectionInputs) -> tuple["Tensor", "Tensor"]:
    """Return the probabilities of engine and learner, kept off 0 and 1 so that the divergence is finite."""
    known_N = _known(inputs)
    both = (inputs.rollout_logprobs_N, inputs.logprobs_N)
    engine_N, learner_N = (x.detach().double().where(known_N, 0.0).exp().clamp(1e-6, 1 - 1e-6) for x in both)
    return engine_N, learner_N
