"""From a step's rewards and scores to one advantage per action token."""

# A attempts, M action tokens

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...executors.rollouts.buffer import Group
from ..advantages import AdvantageInputs, estimate
from ..batch import Batch
from ..loop_parts import LoopSettings, LoopState
from ..losses.kl import reward_kl
from .rewards import StepRewards
from .turns import turn_rewards, turn_sharing, turn_states


def with_advantages(
    batch: Batch, groups: Sequence[Group], rewards: StepRewards, settings: LoopSettings, state: LoopState
) -> tuple[Batch, dict[str, float]]:
    """Return the batch with advantages, and with returns where a critic learns, and what to log."""
    options = settings.algo.advantage
    trajectories = [t for group in groups for t in group.trajectories]
    actions = batch.is_action
    penalty_M, metrics = _kl_penalty(batch, settings, state)
    sharing_AT = turn_sharing(groups, rewards.is_valid_A)
    attempt_M, turn_M = batch.attempt_of_token[actions], batch.turns[actions].astype(np.int64)
    by_turn = options.credit in ("turn", "turn_group")
    made = estimate(
        options.estimator,
        AdvantageInputs(
            rewards_A=rewards.rewards_A,
            is_valid_A=rewards.is_valid_A,
            group_A=np.repeat(np.arange(len(groups)), [len(group.trajectories) for group in groups]),
            attempt_M=attempt_M,
            turn_M=turn_M,
            penalty_M=penalty_M,
            no_std_norm=options.no_std_norm,
            sequence_M=batch.sequence_of_token[actions],
            turn_rewards_AT=turn_rewards(trajectories, rewards.rewards_A, settings.shaping.env_weight or 0.0)
            if by_turn
            else None,
            states_AT=turn_states(trajectories) if options.credit == "turn_group" else None,
            sharing_M=None if sharing_AT is None else sharing_AT[attempt_M, turn_M],
            values_M=_at(batch.values, actions),
            policy_logprobs_M=_at(batch.old_logprobs, actions),
            teacher_logprobs_M=_at(batch.teacher_logprobs, actions),
            gamma=options.gamma,
            lambd=options.lambd,
            credit=options.credit,
            turn_group_weight=options.turn_group_weight,
        ),
    )
    batch = batch.with_advantages(made.advantages_M)
    if made.returns_M is not None:
        batch = batch.with_returns(made.returns_M)
    return batch, metrics | made.metrics


def _kl_penalty(batch: Batch, settings: LoopSettings, state: LoopState) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return what each token's distance to the reference costs its reward."""
    kl = settings.algo.kl
    if kl.use_loss or not kl.init_coef:
        return np.zeros(batch.num_actions), {}
    assert batch.old_logprobs is not None  # the loop scores both whenever there is a coefficient
    assert batch.ref_logprobs is not None
    actions = batch.is_action
    kl_M = reward_kl(kl.estimator, batch.old_logprobs[actions], batch.ref_logprobs[actions])
    return state.kl_coef * kl_M, {"kl/reference": float(kl_M.mean())} if len(kl_M) else {}


def _at(values_N: NDArray[np.float32] | None, actions: NDArray[np.bool_]) -> NDArray[np.float64] | None:
    return None if values_N is None else values_N[actions].astype(np.float64)
