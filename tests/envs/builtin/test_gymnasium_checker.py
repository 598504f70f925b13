"""Gymnasium's own checker, and its wrappers, on built-in environments."""

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import turngym  # noqa: F401  (registers)
from turngym.sandbox.local.backend import LocalSandbox


@pytest.mark.parametrize("env_id", ["turngym/Guess-v0", "turngym/CopyText-v0"])
def test_gymnasiums_checker_finds_nothing(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id).unwrapped)


def test_vector_environments_step_text() -> None:
    envs = gymnasium.make_vec("turngym/Guess-v0", num_envs=2, vectorization_mode="sync", low=1, high=2)
    observations, _ = envs.reset(seed=[0, 1])
    assert all("from 1 to 2" in observation for observation in observations)
    assert envs.step(["1", "2"])[1].shape == (2,)
    envs.close()


def test_a_time_limit_truncates() -> None:
    env = gymnasium.make("turngym/Guess-v0", max_episode_steps=2)
    env.reset(seed=0)
    assert [env.step("")[3] for _ in range(2)] == [False, True]


def test_an_environment_with_a_sandbox_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = LocalSandbox.close

    async def noting(self: LocalSandbox) -> None:
        await close(self)
        closed.append(self)

    monkeypatch.setattr(LocalSandbox, "close", noting)
    env = gymnasium.make("turngym/CodeSandbox-v0", max_turns=2)
    observation, _ = env.reset(seed=3)
    assert "Write a Python function solve" in observation[-1]["content"]
    assert env.step("```run\n1 + 1\n```")[0].startswith("Output:\n2\n")
    assert env.step("```python\ndef solve(x): return None\n```")[1:4] == (0.0, True, False)
    env.close()
    assert len(closed) == 1
