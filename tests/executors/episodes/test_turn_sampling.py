"""What an environment may change of sampling, and what it may not."""

from dataclasses import replace

import pytest

from turngym.agents import Grammar, Sampling, Shape
from turngym.envs.base import Env
from turngym.errors import EnvError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.episodes.turn_sampling import resampled

FIRST = Sampling(max_tokens=8, stop=("a",), stop_token_ids=(1, 2), seed=3)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (None, FIRST),
        ({}, FIRST),
        ({"temperature": 0.5}, Sampling(8, temperature=0.5, stop=("a",), stop_token_ids=(1, 2), seed=3)),
        ({"stop": ["b", "c"]}, Sampling(8, stop=("b", "c"), stop_token_ids=(1, 2), seed=3)),
        ({"stop": ()}, Sampling(8, stop_token_ids=(1, 2), seed=3)),
        ({"stop_token_ids": [5, 2]}, Sampling(8, stop=("a",), stop_token_ids=(5, 2, 1), seed=3)),
        ({"max_tokens": 3}, Sampling(3, stop=("a",), stop_token_ids=(1, 2), seed=3)),
        ({"max_tokens": 99}, FIRST),  # the run's is a bound
        (
            {"shape": {"grammar": {"kind": "choice", "text": '["yes","no"]'}, "min_tokens": 2}},
            replace(FIRST, shape=Shape(Grammar.choice(["yes", "no"]), min_tokens=2)),
        ),
        ({"shape": Shape(bad_words=("a",))}, replace(FIRST, shape=Shape(bad_words=("a",)))),
        ({"shape": None}, FIRST),
        ({"top_p": 0.5, "top_k": 9, "min_p": 0.1}, replace(FIRST, top_p=0.5, top_k=9, min_p=0.1)),
    ],
)
def test_changes(changes, found):
    assert resampled(FIRST, changes) == found


def test_what_says_nothing_leaves_the_last_changes_and_what_is_empty_takes_them_back():
    now = resampled(FIRST, {"temperature": 0.5})
    assert resampled(FIRST, None, now) is now
    assert resampled(FIRST, {}, now) is FIRST


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 5}, "cannot change 'seed' of sampling"),
        ({"top_p": 1.5}, r"top_p must lie in \(0, 1\]"),
        ({"temprature": 1}, "Did you mean 'temperature'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"max_tokens": "many"}, "asked for sampling with {'max_tokens': 'many'}"),
        ({"temperature": -1}, "temperature must not be negative"),
        ({"shape": {"grammar": {"kind": "choice", "text": "[]"}}}, "none empty"),
        ({"shape": {"grammer": 1}}, "grammer"),
    ],
)
def test_mistakes(changes, message):
    with pytest.raises(EnvError, match=message):
        resampled(FIRST, changes)


class Cooling(Env):
    def __init__(self, *infos):
        self._infos = list(infos)

    def reset(self, *, seed=None, options=None):
        return "go", self._infos.pop(0)

    def step(self, action):
        return ".", 0.0, len(self._infos) == 1, False, self._infos.pop(0)


async def test_an_environment_changes_its_next_turns(play):
    engine = ScriptedEngine(lambda request: [65])
    infos = {"sampling": {"temperature": 0.5}}, {}, {"sampling": {}}, {"sampling": {"max_tokens": 1}}, {}
    trajectory = await play(lambda: Cooling(*infos), engine, Sampling(2))
    found = [(request.sampling.temperature, request.sampling.max_tokens) for request in engine.requests]
    assert found == [(0.5, 2), (0.5, 2), (1.0, 2), (1.0, 1)]
    assert [s.temperature for s in trajectory.sequences[0].samplings.values()] == [0.5, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("sampling", [3, {"seed": 3}])
async def test_a_change_that_cannot_be_fails_the_attempt(play, sampling):
    trajectory = await play(
        lambda: Cooling({}, {"sampling": sampling}, {}), ScriptedEngine(lambda r: [65]), Sampling(2)
    )
    assert trajectory.failure.kind is FailureKind.ENV
