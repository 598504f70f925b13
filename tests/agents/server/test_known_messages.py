"""Messages that come again are read as if they came for the first time."""

import json

import numpy as np
import pytest

from turngym.agents.server.api_errors import ApiError
from turngym.agents.server.canonical import chat_messages, form_of
from turngym.agents.server.endpoints import _as_sent
from turngym.agents.server.known_messages import KnownMessages
from turngym.agents.server.reading import read_with_history
from turngym.agents.server.wire import ChatRequest, read


def user(content, **more):
    return {"role": "user", "content": content, **more}


def call(call_id, name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def result(call_id, content="noon", **more):
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


MESSAGES = [
    {"role": "developer", "content": "Be brief."},
    user("a"),
    user("a", name="Ada"),
    user([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]),
    call("c1", "time", '{"place": "Oslo"}'),
    call("c1", "weather", {"place": "Oslo", "days": 1}),
    call("c1", "weather", {"place": "Oslo", "days": True}),
    call("c2", "time", "no JSON"),
    result("c1"),
    result("c1", name="other"),
    result("c2"),
    {"role": "assistant", "content": "b", "reasoning_content": "Hm."},
    {"role": "assistant", "content": None, "refusal": "No."},
]


def bodies(number):
    """Histories that grow, are cut, are edited and begin anew, as the clients of one session send them."""
    rng = np.random.default_rng(0)
    history = []
    for _ in range(number):
        history = history[: rng.integers(len(history) // 2, len(history) + 1)] if rng.random() < 0.2 else history
        history = history + [MESSAGES[place] for place in rng.integers(len(MESSAGES), size=rng.integers(1, 4))]
        if rng.random() < 0.1:
            place = rng.integers(len(history))
            history = [*history[:place], MESSAGES[rng.integers(len(MESSAGES))], *history[place + 1 :]]
        yield json.dumps({"messages": history, "temperature": 0.5, "tools": []}).encode()


def test_a_history_is_what_all_of_its_messages_say():
    known = KnownMessages()
    num_read = 0
    for body in bodies(100):
        whole = read(ChatRequest, body)
        messages = chat_messages([message.model_dump(exclude_none=True) for message in whole.messages])
        request, history = read_with_history(ChatRequest, body, known, _as_sent)
        assert json.dumps(history.messages) == json.dumps(messages)  # unlike ==, this tells 1 from True
        assert history.forms == [form_of(message) for message in messages]
        assert request.model_dump(exclude={"messages"}) == whole.model_dump(exclude={"messages"})
        num_read += len(request.messages)
    assert num_read < 200  # of some 10,000


CODE = "if a:\n    b()\n    c()"


@pytest.mark.parametrize(("other", "is_same"), [(f" {CODE}\n", True), (CODE.replace("\n    c", "\nc"), False)])
@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant"])
def test_only_an_answer_says_the_same_whatever_whitespace_is_within_it(role, other, is_same):
    """What the model reads is what the client sends; its own text is what it sampled."""
    forms = [form_of(*chat_messages([{"role": role, "content": text}])) for text in (CODE, other)]
    assert (forms[0] == forms[1]) == (is_same or role == "assistant")


@pytest.mark.parametrize(
    "change",
    [
        {"messages": []},
        {"messages": "a"},
        {"messages": [user("a"), user(1)]},
        {"messages": [user("a"), {"role": "nobody", "content": "b"}]},
        {"messages": [user("a"), 7]},
        {"temperature": "hot"},
        {"temperature": 3},
        {"ignore_eos": True},
        {"logprobs": 1},
    ],
)
def test_what_is_refused_is_refused_in_the_same_words_whatever_is_known(change):
    known = KnownMessages()
    body = {"messages": [user("a"), user("b")]}
    read_with_history(ChatRequest, json.dumps(body).encode(), known, _as_sent)
    wrong = json.dumps({**body, **change}).encode()
    with pytest.raises(ApiError) as wanted:
        read(ChatRequest, wrong)
    with pytest.raises(ApiError) as came:
        read_with_history(ChatRequest, wrong, known, _as_sent)
    assert str(came.value) == str(wanted.value)
    assert (came.value.param, came.value.code) == (wanted.value.param, wanted.value.code)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"a"', b'{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_what_is_no_request_is_refused(body):
    with pytest.raises(ApiError):
        read_with_history(ChatRequest, body, KnownMessages(), _as_sent)


def test_more_messages_than_are_kept_in_mind_are_read_all_the_same(monkeypatch):
    monkeypatch.setattr("turngym.agents.server.known_messages._MOST", 5)
    known = KnownMessages()
    for body in bodies(20):
        whole = read(ChatRequest, body)
        _, history = read_with_history(ChatRequest, body, known, _as_sent)
        assert history.messages == chat_messages([m.model_dump(exclude_none=True) for m in whole.messages])
