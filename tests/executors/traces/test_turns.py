"""Messages and tokens of an episode, turn by turn."""

import asyncio

from turngym.agents.base import Sampling
from turngym.envs.base import Env
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.traces.turns import turns_of


class Examples(Env):
    """Begins with an example of the assistant's."""

    def reset(self, *, seed=None, options=None):
        return [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "2+2"},
        ], {}

    def step(self, action):
        return "more", 0.5, action == "x", False, {}


def test_examples_in_the_first_prompt_are_no_turns(play):
    trajectory = asyncio.run(play(Examples, ScriptedEngine([list(b"4"), list(b"x")]), Sampling(4)))
    first, *turns = turns_of(trajectory)
    assert (first.number, first.completion, first.reward, first.end) == (-1, None, None, None)
    assert [message["content"] for message in first.observation] == ["1+1", "2", "2+2"]
    assert [turn.completion["content"] for turn in turns] == ["4", "x"]
    assert [turn.observation[0]["content"] for turn in turns] == ["more", "more"]
    assert [turn.token_ids.tolist() for turn in turns] == [[ord("4")], [ord("x")]]
    assert [turn.reward for turn in turns] == [0.5, 0.5]


def test_an_episode_that_broke_before_it_began_has_one_turn(play):
    class Broken(Env):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("boom")

    trajectory = asyncio.run(play(Broken, ScriptedEngine([]), Sampling(4)))
    (turn,) = turns_of(trajectory)
    assert (turn.number, turn.observation, len(turn.token_ids)) == (-1, (), 0)


def test_a_completion_that_could_not_be_recorded_is_shown_with_its_tokens(play, echo):
    broken = Reply(list(b"bb"), [-1, -1], stop_reason="no reason")  # the conversation stumbles over it
    trajectory = asyncio.run(play(echo, ScriptedEngine([list(b"a"), broken]), Sampling(4)))
    assert (trajectory.num_turns, trajectory.failure.kind) == (1, "template")
    first, *turns = turns_of(trajectory)
    assert [message["content"] for message in first.observation] == ["go"]
    assert [(turn.completion["content"], turn.token_ids.tolist(), turn.end) for turn in turns] == [
        ("a", [97], "stop"),
        ("bb", [98, 98], None),
    ]
