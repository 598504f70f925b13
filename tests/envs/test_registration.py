"""Registering environments with Gymnasium, by hand and through entry points."""

from types import SimpleNamespace

import gymnasium
import pytest
from gymnasium.envs.registration import registry

from turngym import AsyncEnv, Env, make, register
from turngym.envs import registration
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError, UnknownNameError


class Echo(Env):
    def __init__(self, word: str = "hi") -> None:
        self.word = word

    def reset(self, *, seed=None, options=None):
        self._draw(seed, options)
        return self.word, {}

    def step(self, action):
        return "", float(action == self.word), True, False, {}


class AsyncEcho(AsyncEnv):
    def __init__(self, word: str = "hi") -> None:
        self.word = word

    async def reset(self, *, seed=None, options=None):
        return self.word, {}

    async def step(self, action):
        return "", float(action == self.word), True, False, {}


@pytest.fixture(autouse=True)
def _clean_registry():
    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


@pytest.mark.parametrize("target", [Echo, AsyncEcho, "turngym.envs.builtin.copy_text:CopyText"])
def test_register_makes_a_plain_gymnasium_loop_work(target) -> None:
    register("Mine", target)
    env = gymnasium.make("turngym/Mine-v0")
    observation, info = env.reset(seed=3)
    _, reward, terminated, truncated, _ = env.step(observation.removeprefix("Repeat: "))
    env.close()
    assert (info, reward, terminated, truncated) == ({}, 1.0, True, False)


def test_default_and_given_keyword_arguments_reach_the_class() -> None:
    register("Mine", AsyncEcho, word="default")
    assert gymnasium.make("turngym/Mine-v0").reset()[0] == "default"
    assert gymnasium.make("turngym/Mine-v0", word="given").reset()[0] == "given"
    assert make("Mine", word="again").reset()[0] == "again"
    assert resolve("Mine", {}).kwargs == {"word": "default"}


def test_the_highest_version_is_taken_where_none_is_named() -> None:
    register("Mine", Echo, word="old")
    register("Mine-v2", Echo, word="new")
    assert resolve("Mine", {})().word == "new"
    assert resolve("turngym/Mine-v0", {})().word == "old"


def test_registering_again_is_harmless_but_another_class_is_refused() -> None:
    register("Mine", Echo)
    register("Mine", Echo)
    with pytest.raises(ConfigError, match="'turngym/Mine-v0' is already registered"):
        register("Mine", AsyncEcho)


@pytest.mark.parametrize("name", ["", "a/b", "two words", "x:y"])
def test_names_of_another_form_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="wanted an environment name"):
        register(name, Echo)


@pytest.mark.parametrize("target", ["no_colon", ":Class", "module:", 3])
def test_targets_of_another_form_are_refused(target) -> None:
    with pytest.raises(ConfigError, match="wanted"):
        register("Mine", target)


def test_packages_register_through_entry_points_and_a_clash_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        SimpleNamespace(name="Guess", value="other.package:Guess", dist=SimpleNamespace(name="other-package")),
        SimpleNamespace(name="Theirs", value="turngym.envs.builtin.guess:Guess", dist=None),
    ]
    asked = []
    monkeypatch.setattr(registration, "entry_points", lambda group: asked.append(group) or points)
    with pytest.warns(UserWarning, match="'Guess' of other-package is left out"):
        registration._register_known()
    assert asked == ["turngym.envs"]
    assert "from 1 to 20" in gymnasium.make("turngym/Theirs-v0").reset()[0]
    assert resolve("Guess", {}).target == "turngym.envs.builtin.guess:Guess"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("Gues", "'Guess'"), ("turngym/Gess", "'turngym/Guess-v0'"), ("Guess-v9", "'Guess'")],
)
def test_an_unknown_id_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown environment '{name}'. Did you mean {nearest}"):
        resolve(name, {})


def test_an_id_that_is_no_id_at_all_is_unknown_too() -> None:
    with pytest.raises(UnknownNameError, match="unknown environment"):
        resolve("what is this?", {})


def test_a_gymnasium_environment_that_is_not_ours_is_refused() -> None:
    gymnasium.register("other/Pole-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
    with pytest.raises(ConfigError, match=r"inherits turngym\.Env"):
        resolve("other/Pole-v0", {})
