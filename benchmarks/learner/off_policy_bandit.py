"""What a correction is worth on data sampled from weights four versions old: a bandit of a few arms, in seconds.

An attempt picks one of six arms at each of two places; its reward is the mean of the arms' values, with noise. The
best arm is rare at first and a second best one is not: without a correction old data go on praising the second best
after the policy has moved there already, and the best is forgotten. The score is the exact expected reward of the
policy, averaged over the steps of training. All settings start alike, with one rate, batch size and kind of advantage.
"""

import argparse
import json
import platform
import statistics
from collections import deque

import numpy as np
import torch

from turngym.learner.batch import Batch
from turngym.learner.losses.aggregations import count_totals
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import PolicyOptions
from turngym.learner.models.logprobs import ActionLogprobs

PLACES, ATTEMPTS, LAG, RATE = 2, 128, 4, 12.0
VALUES = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5, 1.0])
START = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, -2.0])  # the best arm is tried rarely at first
NOISE = 0.05
BASELINE, TRUNCATED = "4 old, no correction", "4 old, token/truncate 2"
GOAL = 0.9


def objective(
    level: str = "off", mode: str = "truncate", bounds: tuple[float, float] = (0.0, 2.0), **more
) -> Objective:
    return Objective("ppo", PolicyOptions(), "token-mean", level, mode, bounds, **more)


SETTINGS = {
    "on policy": (0, objective()),
    BASELINE: (LAG, objective()),
    TRUNCATED: (LAG, objective("token")),
    "4 old, token/mask 0.2 5": (LAG, objective("token", "mask", (0.2, 5.0))),
    "4 old, seq/clip 0 5": (LAG, objective("seq", "clip", (0.0, 5.0))),
    "4 old, geometric/truncate 2": (LAG, objective("geometric")),
    "4 old, coupled": (LAG, objective(uses_rollout_as_old=True)),
}


def sample(logits: torch.Tensor, version: int, generator: torch.Generator) -> Batch:
    """Let the policy of these logits [places, arms] make attempts, and give them their advantages."""
    logprobs = logits.log_softmax(-1)
    arms = torch.multinomial(logprobs.exp(), ATTEMPTS, replacement=True, generator=generator).T  # [attempts, places]
    rewards = VALUES[arms].mean(1) + NOISE * torch.randn(ATTEMPTS, generator=generator)
    advantages = ((rewards - rewards.mean()) / rewards.std()).numpy()
    chosen = logprobs.gather(1, arms.T).T.numpy()
    context = np.zeros((ATTEMPTS, 1))
    is_action = np.tile([False] + [True] * PLACES, ATTEMPTS)
    return Batch(
        token_ids=np.hstack([context, arms.numpy()]).astype(np.int32).ravel(),
        is_action=is_action,
        rollout_logprobs=np.hstack([context * np.nan, chosen]).astype(np.float32).ravel(),
        versions=np.where(is_action, version, -1).astype(np.int32),
        temperatures=np.ones(len(is_action), np.float32),
        turns=np.zeros(len(is_action), np.int32),
        starts=np.arange(ATTEMPTS + 1) * (PLACES + 1),
        attempts=np.arange(ATTEMPTS),
        advantages=np.where(is_action, np.repeat(advantages, PLACES + 1), 0).astype(np.float32),
    )


def score(logits: torch.Tensor, batch: Batch) -> ActionLogprobs:
    logprobs = logits.log_softmax(-1)
    arms = torch.tensor(batch.token_ids).long().reshape(ATTEMPTS, PLACES + 1)[:, 1:]
    chosen = logprobs.gather(1, arms.T).T
    return ActionLogprobs(torch.nn.functional.pad(chosen, (1, 0)).reshape(-1), torch.zeros(batch.num_tokens))


def expected_reward(logits: torch.Tensor) -> float:
    return float((logits.softmax(-1) @ VALUES).mean())


def train(loss: Objective, lag: int, steps: int, seed: int) -> float:
    """Take plain gradient steps on data `lag` versions old and return the mean expected reward over them."""
    generator = torch.Generator().manual_seed(seed)
    logits = START.repeat(PLACES, 1).requires_grad_()
    past = deque([logits.detach().clone()] * (lag + 1), maxlen=lag + 1)
    rewards = []
    for step in range(steps):
        batch = sample(past[0], max(0, step - lag), generator)
        # Without a version the lag is not told, as in a loop that keeps no account of it.
        totals = count_totals(batch, step if loss.corrects_staleness else None)
        value, _ = loss(score(logits, batch), batch, totals)
        (gradient,) = torch.autograd.grad(value, logits)
        with torch.no_grad():
            logits -= RATE * gradient
        past.append(logits.detach().clone())
        rewards.append(expected_reward(logits.detach()))
    return statistics.mean(rewards)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    scores = {
        name: [train(loss, lag, options.steps, seed) for seed in range(options.seeds)]
        for name, (lag, loss) in SETTINGS.items()
    }
    print(f"{'data and correction':30} {'mean reward':>12} {'worst seed':>12}   (best arm at every place: 1.000)")
    for name, rewards in scores.items():
        print(f"{name:30} {statistics.median(rewards):12.3f} {min(rewards):12.3f}")
    on_policy, without, with_it = (statistics.median(scores[name]) for name in ("on policy", BASELINE, TRUNCATED))
    share = with_it / on_policy
    result = {
        "name": "off_policy_bandit",
        "value": with_it,
        "unit": "expected reward",
        "baseline": BASELINE,
        "baseline_value": without,
        "ratio": with_it / without,
        "goal": f"{GOAL} of on policy ({on_policy:.3f})",
        "met": share >= GOAL and with_it > without,
        "where": f"{platform.machine()}, CPU, torch {torch.__version__}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
