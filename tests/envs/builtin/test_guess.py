"""`Guess`."""

import pytest

from turngym import Task
from turngym.envs.builtin.guess import Guess
from turngym.envs.factory import EnvFactory
from turngym.envs.task import Split
from turngym.errors import ConfigError, EnvError


def secret_of(env: Guess) -> int:
    assert env._secret is not None
    return env._secret


def test_bisection_always_finds_it() -> None:
    for seed in range(40):
        env = Guess(low=1, high=31, max_guesses=5)
        env.reset(seed=seed)
        low, high, terminated, reward = 1, 31, False, 0.0
        while not terminated:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = env.step(f"my 2 cents: {guess}")
            low, high = (guess + 1, high) if observation.startswith("Higher") else (low, guess - 1)
            assert not truncated
        assert (reward, info) == (1.0, {"score": 1.0})


def test_an_action_without_number_uses_up_a_guess() -> None:
    env = Guess(low=1, high=9, max_guesses=2)
    env.reset(seed=0)
    assert env.step("")[0] == "I saw no number. Answer with one from 1 to 9. 1 left."
    _, reward, terminated, _, info = env.step("no idea")
    assert (reward, terminated, info) == (0.0, True, {"score": 0.0})


def test_partial_rewards_the_closeness_of_the_last_guess() -> None:
    env = Guess(low=0, high=10, max_guesses=1, partial=0.5)
    for seed in range(20):
        env.reset(seed=seed)
        secret = secret_of(env)
        reward = env.step("0")[1]
        assert reward == (1.0 if secret == 0 else pytest.approx(0.5 * (1 - secret / 10)))
    env.reset(seed=0)
    assert env.step("1000000")[1] == 0.0
    env.reset(seed=0)
    assert env.step("9" * 10_000)[1] == 0.0  # more digits than Python converts


def test_negative_numbers_are_read() -> None:
    env = Guess(low=-5, high=-1, max_guesses=1)
    env.reset(seed=1)
    assert env.step(str(secret_of(env)))[1] == 1.0


def test_the_secret_follows_from_the_task_alone() -> None:
    def secrets(split: Split) -> list[int]:
        env = Guess(high=1000)
        found = []
        for task in EnvFactory("Guess", Guess).tasks(split, 0)[:20]:
            env.reset(options={"task": task})
            found.append(secret_of(env))
        return found

    assert secrets("train") == secrets("train")
    assert secrets("train") != secrets("eval")
    assert len(set(secrets("train"))) > 15


@pytest.mark.parametrize("kwargs", [{"low": 5, "high": 5}, {"max_guesses": 0}, {"partial": 1.0}, {"partial": -0.1}])
def test_impossible_settings_are_refused(kwargs: dict) -> None:
    with pytest.raises(ConfigError, match="Guess wants"):
        Guess(**kwargs)


def test_a_step_outside_an_episode_is_an_error() -> None:
    env = Guess(low=1, high=2, max_guesses=2)
    with pytest.raises(EnvError, match="call reset first"):
        env.step("1")
    env.reset(options={"task": Task("t", seed=3)})
    env.step(str(secret_of(env)))
    with pytest.raises(EnvError, match="call reset first"):
        env.step("1")
