"""What a micro-batch contributes to one optimiser step: policy loss, correction and KL, as one number."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import Batch
from .corrections import CorrectionInputs, correct
from .kl import kl_metrics, token_kl
from .logprobs import ActionLogprobs, action_logprobs
from .losses import POLICY_LOSSES, PolicyInputs, PolicyOptions, Totals, aggregate, aggregation_weights
from .metrics import Mean, Metrics

# N tokens


@dataclass(frozen=True)
class Objective:
    """The choices that make the loss; small, picklable, the same on every rank.

    Attributes:
        policy_loss: Name in `POLICY_LOSSES`.
        policy: Its bounds.
        aggregation: Name in `LOSS_AGGREGATIONS`.
        correction_level, correction_mode, correction_bounds: The importance-sampling correction.
        kl_coef: Weight of the KL in the loss; 0 leaves it out.
        kl_estimator: Name in `KL_ESTIMATORS`.
    """

    policy_loss: str
    policy: PolicyOptions
    aggregation: str
    correction_level: str
    correction_mode: str
    correction_bounds: tuple[float, float]
    kl_coef: float = 0.0
    kl_estimator: str = "k3"

    @property
    def needs_all_sequences(self) -> bool:
        """Whether a sequence without any advantage still has a gradient."""
        return self.kl_coef != 0

    def of_model(
        self, model: torch.nn.Module, batch: Batch, totals: Totals, device: torch.device | str
    ) -> tuple[Tensor, Metrics]:
        """Run the policy over a micro-batch; return its share of the loss, and its metrics."""
        return self(action_logprobs(model, batch, device), batch, totals)

    def __call__(self, scored: ActionLogprobs, batch: Batch, totals: Totals) -> tuple[Tensor, Metrics]:
        """Return this part's share of the loss and its metrics.

        The shares of all micro-batches and ranks add up to the loss of the step. Without old logprobs in
        the batch, the step's first policy is the current one, whose ratio is 1 with the policy's gradient.
        """
        device = scored.logprobs_N.device
        is_action_N = torch.tensor(batch.is_action, device=device)
        sequence_N = torch.tensor(batch.sequence_of_token, device=device)
        old_N = scored.logprobs_N.detach()
        if batch.old_logprobs is not None:
            old_N = torch.tensor(batch.old_logprobs, device=device)
        correction = correct(
            self.correction_level,
            self.correction_mode,
            CorrectionInputs(
                logprobs_N=old_N,
                rollout_logprobs_N=torch.tensor(batch.rollout_logprobs, device=device),
                is_action_N=is_action_N,
                sequence_N=sequence_N,
                num_sequences=batch.num_sequences,
                bounds=self.correction_bounds,
            ),
        )
        policy = POLICY_LOSSES[self.policy_loss](
            PolicyInputs(
                logprobs_N=scored.logprobs_N,
                old_logprobs_N=old_N,
                advantages_N=torch.tensor(batch.advantages, device=device),
                is_weights_N=correction.weights_N,
                is_action_N=is_action_N,
                sequence_N=sequence_N,
                num_sequences=batch.num_sequences,
            ),
            self.policy,
        )
        loss_N = policy.loss_N
        metrics = policy.metrics | correction.metrics | {"policy/entropy": _mean(scored.entropy_N, is_action_N)}
        if self.kl_coef:
            assert batch.ref_logprobs is not None  # the loop asks the reference whenever there is a coefficient
            ref_N = torch.tensor(batch.ref_logprobs, device=device)
            kl_N = token_kl(self.kl_estimator, scored.logprobs_N, ref_N, is_action_N)
            loss_N = loss_N + self.kl_coef * kl_N
            metrics |= kl_metrics(kl_N, is_action_N)
        weights_N = torch.tensor(aggregation_weights(self.aggregation, batch, totals), device=device)
        loss = aggregate(loss_N, weights_N, is_action_N)
        # An empty part must still run backward through the model, so that sharded ranks stay in step.
        return loss + 0.0 * scored.logprobs_N.sum(), metrics


def _mean(values_N: Tensor, is_action_N: Tensor) -> Mean:
    return Mean(values_N.where(is_action_N, 0.0).sum().item(), is_action_N.sum().item())
