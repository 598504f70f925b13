"""Learning from a teacher on the policy's own samples."""

# M action tokens

import numpy as np

from ...errors import TrajectoryError
from .base import ESTIMATORS, AdvantageInputs, Advantages

LOG_RATIO_BOUND = 10.0


@ESTIMATORS.register("on_policy_distill")
def on_policy_distill(inputs: AdvantageInputs) -> Advantages:
    """Reward each token with what the teacher's logprob has over the policy's own, and look no further.

    The reverse KL to the teacher, per token, with discount 0 ("On-Policy Distillation", Thinking Machines, 2025;
    GKD, arXiv:2306.13649; MiniLLM, arXiv:2306.08543, which also lets a token answer for later ones). The
    environment's rewards are only logged; nothing is whitened or compared, so one attempt per task is enough. The
    difference is bounded to [-10, 10], as the KL in rewards is: a token that the teacher never says (-inf) weighs as
    much as one that it says 22,000 times more rarely than the policy. A KL penalty to a reference is subtracted at
    its own token.

    Raises:
        TrajectoryError: No logprobs of the teacher or of the policy.
    """
    for name, whose in (("teacher_logprobs_M", "the teacher's"), ("policy_logprobs_M", "the policy's own")):
        if getattr(inputs, name) is None:
            raise TrajectoryError(f"'on_policy_distill' needs {name}, {whose} logprob of each action token")
    assert inputs.teacher_logprobs_M is not None  # just checked
    assert inputs.policy_logprobs_M is not None
    difference_M = inputs.teacher_logprobs_M.astype(np.float64) - inputs.policy_logprobs_M
    bounded_M = np.clip(difference_M, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    metrics: dict[str, float] = {}
    if len(bounded_M):
        metrics["distill/reverse_kl"] = float(-bounded_M.mean())
        metrics["distill/bounded"] = float((np.abs(difference_M) > LOG_RATIO_BOUND).mean())
    return Advantages(bounded_M - inputs.penalty_M, metrics)
