"""The whole loss and its gradient against plain loops over rows of numbers, on random steps."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from turngym.learner.batch import Batch
from turngym.learner.losses.aggregations import LOSS_AGGREGATIONS, count_totals
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyOptions
from turngym.learner.models.logprobs import ActionLogprobs

LOW, HIGH, GATES, LENGTH, BOUNDS = 0.2, 0.3, (1.5, 2.5), 17, (0.6, 1.8)
CORRECTIONS = [
    ("off", "mask", "ratio"), ("token", "truncate", "ratio"), ("token", "clip", "ratio"), ("token", "mask", "ratio"),
    ("seq", "truncate", "ratio"), ("seq", "clip", "ratio"), ("seq", "mask", "ratio"), ("geometric", "clip", "ratio"),
    ("geometric", "mask", "ratio"), ("geometric", "gate", "ratio"), ("token", "mask", "binary_kl"),
    ("geometric", "mask", "tv"),
]  # fmt: skip


def exp(x):
    return math.exp(min(max(x, -20), 20))


def weights_of_row(row, level, mode, gating, bounds):
    """One weight per action of a sequence; a row is a list of dicts."""
    low, high = bounds
    logs = [token["old"] - token["rollout"] for token in row]
    token_ratios = [exp(log) for log in logs]
    units = {
        "off": [1.0] * len(row),
        "token": token_ratios,
        "seq": [exp(sum(logs))] * len(row),
        "geometric": [exp(sum(logs) / len(row))] * len(row),
    }[level]
    if level == "off":
        return units
    if gating != "ratio":
        clamp = [[min(max(exp(min(token[name], 0)), 1e-6), 1 - 1e-6) for name in ("rollout", "old")] for token in row]
        if gating == "tv":
            measured = [abs(p - q) for p, q in clamp]
        else:
            measured = [p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)) for p, q in clamp]
        if level != "token":
            measured = [sum(measured) / len(row)] * len(row)
        return [ratio if m <= high else 0.0 for ratio, m in zip(token_ratios, measured, strict=True)]
    if mode == "truncate":
        return [min(unit, high) for unit in units]
    if mode == "clip":
        return [min(max(unit, low), high) for unit in units]
    kept = units if mode == "mask" else [min(max(ratio, low), high) for ratio in token_ratios]
    return [weight if low <= unit <= high else 0.0 for weight, unit in zip(kept, units, strict=True)]


def token_loss(name, token, ratio, weight):
    """Return loss and slope by the token's own logprob."""
    advantage = token["advantage"]
    if name in ("ppo", "gspo"):
        clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
        if clipped * advantage < ratio * advantage:
            return -weight * clipped * advantage, 0.0
        inside = 1.0 if math.exp(-20) < ratio < math.exp(20) else 0.0
        return -weight * ratio * advantage, -weight * ratio * advantage * inside
    if name == "cispo":
        held = min(max(ratio, 1 - LOW), 1 + HIGH)
        return -weight * held * advantage * token["policy"], -weight * held * advantage
    t = GATES[0] if advantage > 0 else GATES[1]
    x = t * (ratio - 1)
    sigmoid = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    inside = 1.0 if math.exp(-20) < ratio < math.exp(20) else 0.0
    slope = 4 * sigmoid * (1 - sigmoid) * ratio * inside
    return -weight * 4 / t * sigmoid * advantage, -weight * slope * advantage


def reference(rows, attempts, name, aggregation, correction, bounds):
    """Return loss and gradient [per action, in order] of a whole step."""
    per_attempt = {a: sum(len(r) for r, b in zip(rows, attempts, strict=True) if a == b) for a in attempts}
    num_attempts = sum(1 for count in per_attempt.values() if count)
    total, slopes = 0.0, []
    for row, attempt in zip(rows, attempts, strict=True):
        if not row:
            continue
        weights = weights_of_row(row, *correction, bounds)
        logs = [token["policy"] - token["old"] for token in row]
        share = {
            "token-mean": 1 / sum(per_attempt.values()),
            "seq-mean-token-mean": 1 / num_attempts / per_attempt[attempt],
            "seq-mean-token-sum": 1 / num_attempts,
            "seq-mean-token-sum-norm": 1 / num_attempts / LENGTH,
        }[aggregation]
        for token, log, weight in zip(row, logs, weights, strict=True):
            ratio = exp(sum(logs) / len(row)) if name == "gspo" else exp(log)
            value, slope = token_loss(name, token, ratio, weight)
            total += share * value
            slopes.append(share * slope)
    return total, slopes


def random_step(rng, spread):
    """Rows of 1 to 9 tokens, some without any action, some attempts with several rows; NaN and infinity off actions."""
    lengths = rng.integers(1, 10, rng.integers(1, 7))
    num_tokens = int(lengths.sum()) + len(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    is_action = rng.random(num_tokens) < 0.6
    is_action[starts[:-1]] = False
    if not is_action.any():
        is_action[1] = True
    numbers = {
        "policy": rng.normal(-2, 0.3, num_tokens),
        "old": rng.normal(-2, 0.3, num_tokens).astype(np.float32),
        "rollout": rng.normal(-2, 0.3, num_tokens).astype(np.float32),
        "advantage": rng.normal(size=num_tokens).astype(np.float32),
    }
    for name in ("policy", "old", "rollout"):
        far = rng.random(num_tokens) < 0.2
        numbers[name] = np.where(far, numbers[name] + spread * rng.choice([-1, 1], num_tokens), numbers[name])
    attempts = np.sort(rng.integers(0, 5, len(lengths)))
    rows = [
        [{name: float(array[n]) for name, array in numbers.items()} for n in range(start, end) if is_action[n]]
        for start, end in pairwise(starts)
    ]
    off = rng.choice([np.nan, np.inf, -np.inf, 3.0], num_tokens)
    batch = Batch(
        token_ids=np.zeros(num_tokens, np.int32),
        is_action=is_action,
        rollout_logprobs=np.where(is_action, numbers["rollout"], off),
        versions=np.where(is_action, 0, -1).astype(np.int32),
        temperatures=np.ones(num_tokens, np.float32),
        turns=np.zeros(num_tokens, np.int32),
        starts=starts.astype(np.int64),
        attempts=attempts.astype(np.int64),
        advantages=np.where(is_action, numbers["advantage"], off),
        old_logprobs=np.where(is_action, numbers["old"], off),
    )
    return batch, np.where(is_action, numbers["policy"], off), rows, attempts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 300.0])
@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_equals_plain_loops(name, spread):
    """Every aggregation with every correction, each on a random step of its own; exp overflows at 300."""
    rng = np.random.default_rng(7)
    options = PolicyOptions(LOW, HIGH, None, *GATES)
    for aggregation in LOSS_AGGREGATIONS:
        for correction in CORRECTIONS:
            bounds = BOUNDS if correction[2] == "ratio" else (0.0, 0.03)
            batch, policy, rows, attempts = random_step(rng, spread)
            logprobs = torch.tensor(policy, requires_grad=True)
            objective = Objective(
                name, options, aggregation, *correction[:2], bounds, correction_gating=correction[2],
                aggregation_length=LENGTH,
            )  # fmt: skip
            loss, _ = objective(ActionLogprobs(logprobs, logprobs * 1), batch, count_totals(batch))
            loss.backward()
            total, slopes = reference(rows, attempts, name, aggregation, correction, bounds)
            case = (aggregation, correction)
            assert loss.item() == pytest.approx(total, rel=1e-6, abs=1e-9), case
            gradient = logprobs.grad.numpy()
            assert gradient[batch.is_action] == pytest.approx(np.array(slopes), rel=1e-6, abs=1e-9), case
            assert (gradient[~batch.is_action] == 0).all()


def test_one_row_alone_and_rows_in_another_order():
    """A step of one row is that row; the same rows in another order are the same step."""
    rng = np.random.default_rng(1)
    objective = Objective("gspo", PolicyOptions(), "seq-mean-token-mean", "geometric", "clip", BOUNDS)
    for _ in range(20):
        batch, policy, _, _ = random_step(rng, 0.5)
        order = rng.permutation(batch.num_sequences)
        tokens = np.concatenate([np.arange(batch.starts[s], batch.starts[s + 1]) for s in order])
        losses = [
            objective(ActionLogprobs(torch.tensor(logprobs), torch.zeros(len(logprobs))), each, count_totals(each))[0]
            for logprobs, each in [(policy, batch), (policy[tokens], batch.select(order))]
        ]
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-12)
        alone = batch.select([order[0]])
        if alone.num_actions:
            totals = count_totals(alone)
            moved = replace(alone, attempts=alone.attempts + 3)
            start, end = batch.starts[order[0]], batch.starts[order[0] + 1]
            scored = ActionLogprobs(torch.tensor(policy[start:end]), torch.zeros(int(end - start)))
            one, other = objective(scored, alone, totals), objective(scored, moved, count_totals(moved))
            assert one[0].item() == pytest.approx(other[0].item(), abs=1e-12)
