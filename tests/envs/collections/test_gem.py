"""`gem/*`, with the package itself."""

import itertools
import re

import pytest

from turngym.envs.checks import check_env
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError, EnvError, UnknownNameError

pytest.importorskip("gem.envs", reason="needs the package gem-llm: pip install 'turngym[gem]'")

EASY = "gem/game:GuessTheNumber-v0-easy"


def test_a_game_over_several_turns() -> None:
    factory = resolve(EASY, {})
    env, task = factory(), factory.tasks("train", 0)[0]
    text, _ = env.reset(options={"task": task})
    assert text.endswith("Enter your first guess to start the game.\nEnter your next guess.")
    low, high = 1, 10
    for turn in range(1, 5):
        guess = (low + high) // 2
        text, reward, terminated, truncated, _ = env.step(f"\\boxed{{{guess}}}")
        if terminated:
            break
        assert text.startswith(f"At turn {turn}, you guessed {guess}")
        assert (reward, truncated) == (0.0, False)
        low, high = (guess + 1, high) if "higher" in text else (low, guess - 1)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert text == f"Congratulations! You guessed the correct number {guess} in {turn} turns."
    with pytest.raises(EnvError, match="no episode running"):
        env.step("1")


def test_one_question_one_answer_and_none_in_both_splits() -> None:
    factory = resolve("gem/rg:chain_sum", {})
    env = factory()
    asked = {
        split: {env.reset(options={"task": task})[0] for task in itertools.islice(factory.tasks(split, 0), 60)}
        for split in ("train", "eval")
    }
    assert not asked["train"] & asked["eval"]
    text, _ = env.reset(options={"task": factory.tasks("train", 0)[0]})
    answer = eval(re.search(r"problem: ([\d +-]+) =", text)[1])  # digits and signs only
    text, reward, terminated, truncated, _ = env.step(f"\\boxed{{{answer}}}")
    assert (text, reward, terminated, truncated) == ("", 1.0, True, False)
    env.reset(options={"task": factory.tasks("train", 0)[0]})
    assert env.step("\\boxed{99999}")[1] == 0.0


def test_it_is_a_proper_environment() -> None:
    assert check_env(resolve(EASY, {})) == []


def test_wrong_names_and_options() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'game:GuessTheNumber-v0-easy'"):
        resolve("gem/game:GuessTheNumber-v0-esy", {})
    with pytest.raises(ConfigError, match=r"takes no argument 'max_turn'\. Did you mean 'max_turns'"):
        resolve(EASY, {"max_turn": 1})()
