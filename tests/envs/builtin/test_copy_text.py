"""`CopyText`."""

import pytest

from turngym.envs.builtin.copy_text import CopyText
from turngym.errors import ConfigError, EnvError


def reward_of(make_action, **kwargs) -> tuple[float, dict]:
    env = CopyText(**kwargs)
    text = env.reset(seed=7)[0].removeprefix("Repeat: ")
    observation, reward, terminated, truncated, info = env.step(make_action(text))
    assert (observation, terminated, truncated) == ("", True, False)
    assert info["score"] == reward
    return reward, info["extra_logs"]


@pytest.mark.parametrize(
    ("make_action", "reward", "belonging", "right"),
    [
        (lambda text: text, 1.0, 1.0, 1.0),
        (lambda text: "", 0.0, 0.0, 0.0),
        (lambda text: "!" * 8, 0.0, 0.0, 0.0),
        (lambda text: text[:4], 0.5, 0.5, 0.5),
        (lambda text: text + "!" * 8, 0.5, 0.5, 0.5),
        (lambda text: "!" + text[1:], 0.875, 0.875, 0.875),
        (lambda text: text[:6] + "".join("ab"[c == "a"] for c in text[6:]), 0.875, 1.0, 0.75),
    ],
)
def test_rewards(make_action, reward: float, belonging: float, right: float) -> None:
    assert reward_of(make_action, alphabet="ab") == (reward, {"alphabet": belonging, "copied": right})


def test_the_text_follows_from_the_seed() -> None:
    texts = [CopyText(length=20).reset(seed=seed)[0] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == len("Repeat: ") + 20


@pytest.mark.parametrize("kwargs", [{"alphabet": ""}, {"length": 0}])
def test_impossible_settings_are_refused(kwargs: dict) -> None:
    with pytest.raises(ConfigError, match="CopyText wants"):
        CopyText(**kwargs)


def test_a_second_step_is_an_error() -> None:
    env = CopyText()
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(EnvError, match="call reset first"):
        env.step("x")
