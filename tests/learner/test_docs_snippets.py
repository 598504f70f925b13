"""The snippets of the learner's pages run, and what they register works."""

import re
from pathlib import Path

import numpy as np
import torch

from turngym.learner.advantages import ESTIMATORS, AdvantageInputs, estimate
from turngym.learner.losses.policy import POLICY_LOSSES, PolicyInputs, PolicyOptions

DOCS = Path(__file__).parents[2] / "docs"


def run_snippets(page):
    snippets = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), {})


def test_a_new_estimator(monkeypatch):
    monkeypatch.setattr(ESTIMATORS, "_entries", dict(ESTIMATORS._entries))
    run_snippets("estimators.md")
    attempts = np.array([0, 0, 1])
    made = AdvantageInputs(np.array([2.0, 5.0]), np.ones(2, bool), np.zeros(2, int), attempts, attempts, np.zeros(3))
    assert estimate("plain", made).advantages_M.tolist() == [2, 2, 5]
    assert estimate("above_mean", made).advantages_M.tolist() == [0, 0, 1]


def test_a_new_loss(monkeypatch):
    monkeypatch.setattr(POLICY_LOSSES, "_entries", dict(POLICY_LOSSES._entries))
    run_snippets("losses.md")
    one = torch.ones(1)
    made = PolicyInputs(one.log(), one.log(), 3 * one, one, one.bool(), torch.zeros(1, dtype=torch.int64), 1)
    assert POLICY_LOSSES["unclipped"](made, PolicyOptions()).loss_N.tolist() == [-3]
