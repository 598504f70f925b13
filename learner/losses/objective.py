"""What a micro-batch contributes to one optimiser step: policy loss, correction, KL and entropy, as one number."""

# N tokens

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import ConfigError, LearnerError
from ..batch import Batch
from ..metrics import Mean, Metrics
from ..models.logprobs import ActionLogprobs, action_logprobs
from .aggregations import Totals, aggregate, aggregation_weights
from .corrections import Correction, CorrectionInputs, check, correct
from .kl import kl_metrics, token_kl, unbiased_token_kl
from .policy import POLICY_LOSSES, PolicyInputs, PolicyOptions


@dataclass(frozen=True)
class Objective:
    """The choices that make the loss; small, picklable, the same on every rank.

    Three policies meet in it (decoupled PPO, arXiv:2110.00641, as AReaL has it, arXiv:2505.24298): the engine's that
    sampled (rollout logprobs), the proximal one that the step starts from (old logprobs, scored by the learner) and the
    one being trained. The loss has current / proximal and its clip range, the correction weighs it by
    proximal / engine. Without old logprobs the proximal policy is the current one: the ratio is then 1 with the
    policy's gradient, which is exact for the first update on a batch, and the correction carries all of the staleness.

    Attributes:
        policy_loss: Name in `POLICY_LOSSES`.
        policy: Its bounds.
        aggregation: Name in `LOSS_AGGREGATIONS`, for KL and entropy too (OpenRLHF takes their mean over tokens always).
        correction_level, correction_mode, correction_bounds: The importance-sampling correction.
        kl_coef: Weight of the KL in the loss; 0 leaves it out.
        kl_estimator: Name in `KL_ESTIMATORS`.
        correction_gating: Name in `GATES`.
        aggregation_length: Tokens per attempt in a constant denominator.
        has_unbiased_kl: Weigh the KL so that its gradient is that of the true KL.
        entropy_coef: Weight of the entropy bonus; None and 0 only measure it.
        aux_loss_coef: Weight of the load-balancing loss of a mixture of experts.
        uses_rollout_as_old: Coupled PPO: the loss has current / engine, and no correction beside it. Shaped tokens have
            current / proximal all the same.
    """

    policy_loss: str
    policy: PolicyOptions
    aggregation: str
    correction_level: str
    correction_mode: str
    correction_bounds: tuple[float, float]
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    correction_gating: str = "ratio"
    aggregation_length: int | None = None
    has_unbiased_kl: bool = False
    entropy_coef: float | None = None
    aux_loss_coef: float = 0.0
    uses_rollout_as_old: bool = False

    def __post_init__(self) -> None:
        check(self.correction_level, self.correction_mode, self.correction_gating, self.correction_bounds)
        if self.uses_rollout_as_old and self.correction_level != "off":
            raise ConfigError(
                "the engine's logprobs are the ratio's denominator already; a correction "
                f"({self.correction_level!r}) would count the same difference twice: set its level to 'off'"
            )

    @property
    def needs_all_sequences(self) -> bool:
        """Whether a sequence without any advantage still has a gradient."""
        return self.kl_coef != 0 or self.needs_entropy_gradient or self.aux_loss_coef != 0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the entropy must come with a gradient."""
        return bool(self.entropy_coef)

    @property
    def corrects_staleness(self) -> bool:
        """Whether tokens of older weights are accounted for."""
        return self.correction_level != "off" or self.uses_rollout_as_old

    def of_model(
        self, model: torch.nn.Module, batch: Batch, totals: Totals, device: torch.device | str
    ) -> tuple[Tensor, Metrics]:
        """Run the policy over a micro-batch; return its share of the loss, and its metrics."""
        scored = action_logprobs(
            model,
            batch,
            device,
            with_entropy_grad=self.needs_entropy_gradient,
            with_aux_loss=self.aux_loss_coef != 0,
        )
        return self(scored, batch, totals, scored.aux_loss)

    def __call__(
        self, scored: ActionLogprobs, batch: Batch, totals: Totals, aux_loss: Tensor | None = None
    ) -> tuple[Tensor, Metrics]:
        """Return this part's share of the loss and its metrics.

        The shares of all micro-batches and ranks add up to the loss of the step.

        Args:
            scored: The policy's logprobs and entropies of the part.
            batch: The part.
            totals: Of the whole step.
            aux_loss: Scalar, the model's load-balancing loss over the part. Its weight is the part's share of the
                step's tokens, context included, so that the step has the mean over tokens of the parts' losses. The
                loss itself is not additive: it depends on which sequences share a forward pass, as everywhere.

        Raises:
            LearnerError: The part has tokens of older weights and nothing corrects for them, or there is no aux_loss
                where it has a weight.
        """
        self._check_staleness(batch, totals)
        device = scored.logprobs_N.device
        is_action_N = torch.tensor(batch.is_action, device=device)
        proximal_N = scored.logprobs_N.detach()
        if batch.old_logprobs is not None:
            proximal_N = torch.tensor(batch.old_logprobs, device=device)
        correction = self._correction(proximal_N, batch, totals)
        old_N, weights_N = proximal_N, correction.weights_N
        if self.uses_rollout_as_old:
            rollout_N = torch.tensor(batch.rollout_logprobs, device=device)
            own_N = _is_shaped(batch, device)  # the engine's logprobs of these are no denominator
            old_N = rollout_N.where(~rollout_N.isnan() & ~own_N, proximal_N)
            is_unknown_N = rollout_N.isnan() & ~own_N & is_action_N
            weights_N = weights_N.where(~is_unknown_N, 0.0)  # as unknown tokens of a correction
        policy = POLICY_LOSSES[self.policy_loss](
            PolicyInputs(
                logprobs_N=scored.logprobs_N,
                old_logprobs_N=old_N,
                advantages_N=torch.tensor(batch.advantages, device=device),
                is_weights_N=weights_N,
                is_action_N=is_action_N,
                sequence_N=torch.tensor(batch.sequence_of_token, device=device),
                num_sequences=batch.num_sequences,
            ),
            self.policy,
        )
        loss_N = policy.loss_N
        metrics = policy.metrics | correction.metrics | {"policy/entropy": _mean(scored.entropy_N, is_action_N)}
        if self.kl_coef:
            kl_N = self._kl(scored.logprobs_N, old_N, batch, is_action_N)
            loss_N = loss_N + self.kl_coef * kl_N
            metrics |= kl_metrics(kl_N, is_action_N)
        if self.entropy_coef:
            assert scored.entropy_N.requires_grad or not scored.logprobs_N.requires_grad  # needs_entropy_gradient
            loss_N = loss_N - self.entropy_coef * scored.entropy_N.where(is_action_N, 0.0)
        token_weights_N = aggregation_weights(self.aggregation, batch, totals, self.aggregation_length)
        loss = aggregate(loss_N, torch.tensor(token_weights_N, device=device), is_action_N)
        if self.aux_loss_coef:
            if aux_loss is None:
                raise LearnerError("--actor.aux_loss_coef: the model has no load-balancing loss; set it to 0")
            share = batch.num_tokens / max(1, totals.num_tokens)
            loss = loss + self.aux_loss_coef * share * aux_loss
            metrics |= {"policy/aux_loss": Mean(float(aux_loss.detach()) * batch.num_tokens, batch.num_tokens)}
        return loss, metrics

    def _check_staleness(self, batch: Batch, totals: Totals) -> None:
        oldest = batch.versions[batch.is_action].min(initial=totals.version)
        if oldest < totals.version and not self.corrects_staleness:
            raise LearnerError(
                f"tokens that weights {oldest} sampled are to train weights {totals.version} without any correction: "
                "the ratio's denominator would be a policy that never sampled them; set "
                "--algo.advantage.is_correction_level, or take the engine's logprobs as the denominator"
            )

    def _correction(self, proximal_N: Tensor, batch: Batch, totals: Totals) -> Correction:
        device = proximal_N.device
        return correct(
            self.correction_level,
            self.correction_mode,
            CorrectionInputs(
                logprobs_N=proximal_N,
                rollout_logprobs_N=torch.tensor(batch.rollout_logprobs, device=device),
                is_action_N=torch.tensor(batch.is_action, device=device),
                sequence_N=torch.tensor(batch.sequence_of_token, device=device),
                num_sequences=batch.num_sequences,
                bounds=self.correction_bounds,
                gating=self.correction_gating,
                lags_N=torch.tensor(totals.version - batch.versions, device=device).long(),
                is_shaped_N=_is_shaped(batch, device),
            ),
        )

    def _kl(self, logprobs_N: Tensor, old_N: Tensor, batch: Batch, is_action_N: Tensor) -> Tensor:
        assert batch.ref_logprobs is not None  # the loop asks the reference whenever there is a coefficient
        ref_N = torch.tensor(batch.ref_logprobs, device=logprobs_N.device)
        if self.has_unbiased_kl:
            return unbiased_token_kl(self.kl_estimator, logprobs_N, ref_N, old_N, is_action_N)
        return token_kl(self.kl_estimator, logprobs_N, ref_N, is_action_N)


def _is_shaped(batch: Batch, device: torch.device) -> Tensor:
    if batch.is_shaped is None:
        return torch.zeros(batch.num_tokens, dtype=torch.bool, device=device)
    return torch.tensor(batch.is_shaped, device=device)


def _mean(values_N: Tensor, is_action_N: Tensor) -> Mean:
    return Mean(values_N.detach().where(is_action_N, 0.0).sum().item(), is_action_N.sum().item())
