"""The snippets of the pages on environments and rewards run."""

import re
from pathlib import Path

import pytest
from gymnasium.envs.registration import registry

from turngym.config import parse_train
from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory
from turngym.envs.resolution import resolve
from turngym.errors import DataError

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
    ids = [task.id.partition("/")[0] for task in names["mixture"].tasks("train", seed=0)[:3]]
    assert ids == ["CopyText", "Guess", "CopyText"]


def test_a_mixture_in_yaml(tmp_path: Path) -> None:
    """Its datasets are not there; all else is as the page says."""
    text = re.findall(r"```yaml\n(agent: env:Mixture.*?)```", (DOCS / "environments.md").read_text(), re.DOTALL)[0]
    (tmp_path / "run.yaml").write_text(text)
    config = parse_train(["--config", str(tmp_path / "run.yaml")])
    factory = resolve("Mixture", config.agent_args)
    assert {name: member.kwargs for name, member in factory.members.items()} == {
        "Math": {},
        "easy": {"high": 20},
        "hard": {"high": 1000},
    }
    with pytest.raises(DataError, match=r"no file or folder 'gsm8k\.jsonl'"):
        factory.tasks("train", 0)


def test_rewards() -> None:
    reward_func = run_snippets("rewards.md")["reward_func"]
    assert reward_func(["1+1=2"], ["1+1="], ["2"]) == {
        "rewards": [1.0],
        "scores": [1.0],
        "extra_logs": {"length": [1]},
    }
