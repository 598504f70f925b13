import json

import numpy as np
import pytest

from turngym.envs.base import Action
from turngym.envs.messages import RawText
from turngym.envs.serving.wire import (
    BadRequestError,
    action_of,
    action_to_json,
    encoded,
    failure_of,
    failure_to_json,
    observation_of,
    observation_to_json,
    task_of,
    task_to_json,
)
from turngym.envs.task import Task
from turngym.envs.tools.calls import ParsedAnswer, ToolCall
from turngym.errors import EnvError, GraderError


def over_the_wire(value):
    return json.loads(encoded(value))


@pytest.mark.parametrize("observation", ["", "text", RawText("raw"), [{"role": "user", "content": "hi"}], []])
def test_observations_arrive_as_they_were(observation):
    arrived = observation_of(over_the_wire(observation_to_json(observation)), "server")
    assert arrived == observation
    assert type(arrived) is type(observation)


def test_tasks_arrive_as_they_were():
    for task in (
        Task("a"),
        Task("b", prompt="p", label=["x", 1.5], seed=7, data={"n": {"m": None}}),
        Task("c", prompt=[{"role": "user", "content": "p"}], label=np.float32(0.5)),
    ):
        assert task_of(over_the_wire(task_to_json(task))) == task


def test_actions_arrive_with_where_they_came_from():
    action = Action(
        "a",
        raw="a<eos>",
        query="q a<eos>",
        is_cut=True,
        parsed=ParsedAnswer("a", (ToolCall("f", {"x": [1]}, None, "i"),)),
    )
    arrived = action_of(over_the_wire(action_to_json(action)))
    assert (arrived, arrived.raw, arrived.query, arrived.is_cut, arrived.parsed) == (
        "a",
        "a<eos>",
        "q a<eos>",
        True,
        action.parsed,
    )
    assert action_of("plain").parsed is None
    assert action_of(over_the_wire(action_to_json("plain"))).raw == "plain"


def test_failures_arrive_as_the_same_failures():
    arrived = failure_of(over_the_wire(failure_to_json(GraderError("no verdict"))), "http://a/step")
    assert type(arrived) is GraderError
    assert str(arrived) == "http://a/step: no verdict"
    other = failure_of(over_the_wire(failure_to_json(KeyError("x"))), "http://a")
    assert type(other) is EnvError
    assert "KeyError" in str(other)
    assert type(failure_of("nonsense", "http://a")) is EnvError
    assert type(failure_of({"error": {"type": "BaseException", "message": ""}}, "a")) is EnvError


@pytest.mark.parametrize(
    "wrong",
    [7, {}, {"id": 7}, {"id": "a", "prompt": 7}, {"id": "a", "seed": "x"}, [], {"text": 1}, {"text": "", "parsed": 7}],
)
def test_what_is_none_of_it_is_refused(wrong):
    with pytest.raises(BadRequestError):
        task_of(wrong) if not isinstance(wrong, dict) or "text" not in wrong else action_of(wrong)
    with pytest.raises(EnvError):
        observation_of({"role": wrong}, "server")


@pytest.mark.parametrize("label", [float("nan"), {1, 2}, object(), 1j])
def test_what_json_has_no_form_for_is_not_sent_in_another(label):
    with pytest.raises(EnvError, match="JSON has no form for it"):
        encoded({"label": label})
