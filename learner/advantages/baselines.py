"""Estimators without a model of their own: rewards against a baseline, or bare.

Wherever attempts at one task are compared, a lone survivor and a group of equal rewards get exactly 0. What is said
of rewards holds for what the credit compares (see `credit.py`). Penalties act per token, after the baseline.
"""

# A attempts, M action tokens

from dataclasses import replace

import numpy as np

from ...errors import TrajectoryError
from .base import ESTIMATORS, AdvantageInputs, Advantages, Floats
from .credit import Compare, relative
from .moments import Groups, whitened, whitening
from .steps import penalty_to_go

GROUP_STD_EPS = 1e-9


@ESTIMATORS.register("group_norm")
def group_norm(inputs: AdvantageInputs) -> Advantages:
    """Subtract the group's mean and divide by its deviation (GRPO, arXiv:2402.03300, outcome supervision).

    The deviation has n - 1, as everywhere, and eps 1e-9, as in OpenRLHF (verl 1e-6, TRL 1e-4). With `no_std_norm`
    only the mean is subtracted. With credit `turn_group` this is GiGPO (arXiv:2505.10978); its authors' code counts
    an attempt once per turn in the episodes' moments, here it counts once.
    """
    return _compared(inputs, _centred if inputs.no_std_norm else _normalised)


@ESTIMATORS.register("dr_grpo")
def dr_grpo(inputs: AdvantageInputs) -> Advantages:
    """Subtract the group's mean and never divide (Dr. GRPO, arXiv:2503.20783).

    The same in OpenRLHF, TRL and verl. The paper's other half, a constant denominator, is the loss's
    (`seq-mean-token-sum-norm`, the default for this estimator; OpenRLHF keeps a token-mean).
    """
    return _compared(inputs, _centred)


@ESTIMATORS.register("rloo")
def rloo(inputs: AdvantageInputs) -> Advantages:
    """Subtract the mean of the group's other valid attempts (RLOO, arXiv:2402.14740).

    Not whitened, as in OpenRLHF and verl (TRL can be asked to). verl gives a lone attempt its raw reward.
    """
    return _compared(inputs, _left_out)


@ESTIMATORS.register("maxrl")
def maxrl(inputs: AdvantageInputs) -> Advantages:
    """Subtract the group's mean and divide by it (MaxRL, arXiv:2602.02710, equation 10).

    It climbs the logarithm of the chance of success. A group without any success gets 0. There is no eps in the
    division (the authors' code adds 1e-6): a mean above 0 needs none, since no reward is more than n times it.

    Raises:
        TrajectoryError: A reward is negative, which is no measure of success.
    """
    bad = np.flatnonzero(inputs.is_valid_A & (inputs.rewards_A < 0))
    if len(bad):
        raise TrajectoryError(
            f"'maxrl' divides by the mean reward and wants rewards of 0 (failure) or more, got "
            f"{inputs.rewards_A[bad[0]]} of attempt {bad[0]}; clip or shift the reward (--reward.clip_range), leave "
            "penalties out of it, or use 'group_norm'"
        )
    return _compared(inputs, _over_mean)


@ESTIMATORS.register("reinforce_baseline")
def reinforce_baseline(inputs: AdvantageInputs) -> Advantages:
    """Subtract the group's mean, then whiten over all action tokens (REINFORCE++-baseline, arXiv:2501.03262).

    Whitening is OpenRLHF's (see `whitening`). Groups without signal count as zeros in the moments, as there, but
    their own rewards stay at exactly 0 after it: the mean of the batch's rewards says nothing about an attempt that
    has nobody to be compared with. The mean of its penalties is subtracted everywhere.
    """
    compared, penalty_M = relative(inputs, _centred), penalty_to_go(inputs)
    scores_M = compared.scores_M - penalty_M
    mean, scale = whitening(scores_M, inputs.no_std_norm)
    mean_penalty, _ = whitening(penalty_M, no_std_norm=True)
    shift_M = np.where(compared.has_signal_M, mean, -mean_penalty)
    return Advantages((scores_M - shift_M) * scale, compared.metrics)


@ESTIMATORS.register("reinforce")
def reinforce(inputs: AdvantageInputs) -> Advantages:
    """Discount the reward and whiten over all action tokens (REINFORCE++, arXiv:2501.03262).

    The reward stands on the attempt's last action token, penalties on each; gamma acts per action token under
    credit `outcome` (OpenRLHF counts the environment's tokens as steps too, verl does not), per turn under
    `discounted` and `turn`. No group is looked at, so nothing but whitening is a baseline.
    """
    compared = relative(replace(inputs, sharing_M=None), _bare)  # nothing is compared
    return Advantages(whitened(compared.scores_M - penalty_to_go(inputs), inputs.no_std_norm), compared.metrics)


@ESTIMATORS.register("flash_reinforce")
def flash_reinforce(inputs: AdvantageInputs) -> Advantages:
    """Subtract the mean over all valid attempts of the batch, whatever their task (FlashREINFORCE, 2026).

    For one attempt per task (https://yifanzhang-pro.github.io/FlashREINFORCE); never divided by a deviation. Each
    attempt counts once, also in verl and TRL; theirs goes with a loss that averages over attempts
    (`seq-mean-token-mean`) and masks sequences by their binary KL. A batch of equal rewards gets exactly 0.
    """
    everyone = replace(inputs, group_A=np.zeros(len(inputs.group_A), np.int64))
    return _compared(everyone, _centred)


def _compared(inputs: AdvantageInputs, compare: Compare) -> Advantages:
    compared = relative(inputs, compare)
    return Advantages(compared.scores_M - penalty_to_go(inputs), compared.metrics)


def _bare(scores_A: Floats, groups: Groups) -> Floats:
    return scores_A


def _centred(scores_A: Floats, groups: Groups) -> Floats:
    return np.where(groups.has_signal_A, scores_A - groups.mean_A, 0.0)


def _normalised(scores_A: Floats, groups: Groups) -> Floats:
    return _centred(scores_A, groups) / (groups.std_A + GROUP_STD_EPS)


def _left_out(scores_A: Floats, groups: Groups) -> Floats:
    """The mean of the others lies n / (n - 1) times as far away as the mean of all."""
    against_A: Floats = _centred(scores_A, groups) * groups.count_A / np.maximum(groups.count_A - 1, 1)
    return against_A


def _over_mean(scores_A: Floats, groups: Groups) -> Floats:
    against_A: Floats = _centred(scores_A, groups) / np.where(groups.mean_A > 0, groups.mean_A, 1.0)
    return against_A
