"""Every policy loss learns a bandit with a known optimum, and the benchmark on stale data runs."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch

from turngym.learner.losses.aggregations import count_totals
from turngym.learner.losses.objective import Objective
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyOptions

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "learner" / "off_policy_bandit.py"


@pytest.fixture(scope="module")
def bandit():
    spec = importlib.util.spec_from_file_location("off_policy_bandit", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", list(POLICY_LOSSES))
def test_every_loss_learns_with_several_updates_on_each_batch(name, bandit):
    """From uniform arms (expected reward 0.25) to nearly always the best one (1.0)."""
    loss = Objective(name, PolicyOptions(), "token-mean", "token", "truncate", (0.0, 2.0))
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(bandit.PLACES, len(bandit.VALUES), requires_grad=True)
    assert bandit.expected_reward(logits.detach()) == pytest.approx(0.25)
    ratios = []
    for step in range(25):
        batch = bandit.sample(logits.detach(), step, generator)
        batch = batch.with_old_logprobs(bandit.score(logits, batch).logprobs_N.detach().numpy())
        for _ in range(3):
            value, metrics = loss(bandit.score(logits, batch), batch, count_totals(batch, step))
            (gradient,) = torch.autograd.grad(value, logits)
            with torch.no_grad():
                logits -= 4.0 * gradient
            ratios.append(metrics["policy/ratio_max"].value())
    assert bandit.expected_reward(logits.detach()) > 0.95
    assert max(ratios) > 1.1  # later updates on a batch did move away from the old policy


@pytest.mark.slow
def test_the_benchmark_runs(bandit, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["off_policy_bandit.py", "--seeds", "1", "--steps", "6"])
    bandit.main()
    *table, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert list(result) == [
        "name", "value", "unit", "baseline", "baseline_value", "ratio", "goal", "met", "where"
    ]  # fmt: skip
    assert math.isclose(result["ratio"], result["value"] / result["baseline_value"])
    assert all(any(line.startswith(name) for line in table) for name in bandit.SETTINGS)
