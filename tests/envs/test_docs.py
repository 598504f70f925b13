"""The snippets of the pages on environments and rewards run."""

import re
from pathlib import Path

import pytest
from gymnasium.envs.registration import registry

from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory

DOCS = Path(__file__).parents[2] / "docs"


def run_snippets(page: str) -> dict:
    names: dict = {"__name__": "snippets"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL):
        exec(code, names)
    return names


@pytest.fixture(autouse=True)
def _clean_registry():
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


def test_environments() -> None:
    names = run_snippets("environments.md")
    assert check_env(EnvFactory("Capital", names["Capital"])) == []


def test_rewards() -> None:
    reward_func = run_snippets("rewards.md")["reward_func"]
    assert reward_func(["1+1=2"], ["1+1="], ["2"]) == {
        "rewards": [1.0],
        "scores": [1.0],
        "extra_logs": {"length": [1]},
    }
