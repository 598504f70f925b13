"""What --rollout.chat_template_kwargs may say, and what comes of it."""

import pytest

from turngym.agents.chat import agent_for
from turngym.agents.template_kwargs import differing, parse_template_kwargs
from turngym.errors import ConfigError


def test_a_json_object_is_read():
    assert parse_template_kwargs(None) == {}
    assert parse_template_kwargs('{"enable_thinking": false, "a": [1]}') == {"enable_thinking": False, "a": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enable_thinking=false", r"wanted a JSON object such as '\{\"enable_thinking\": false\}'"),
        ("[1]", "wanted a JSON object"),
        ('{"tools": []}', "'tools' is given by the conversation"),
        ('{"tokenize": true}', "'tokenize' is given by"),
    ],
)
def test_what_is_none_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_template_kwargs(text)


def test_a_name_that_the_template_does_not_read_is_refused(tokenizer_of, template_text):
    tokenizer = tokenizer_of(template_text("qwen3"))
    with pytest.raises(ConfigError, match=r"reads no 'enable_thinkin'\. Did you mean 'enable_thinking'"):
        agent_for(tokenizer, template_kwargs={"enable_thinkin": False})
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="this model's tokenizer has none"):
        agent_for(tokenizer, template_kwargs={"enable_thinking": False})


def test_prompts_are_made_with_them(tokenizer_of, template_text):
    tokenizer = tokenizer_of(template_text("qwen3"))
    for kwargs, end in (({"enable_thinking": False}, "<think>\n\n</think>\n\n"), ({}, "assistant\n")):
        conversation = agent_for(tokenizer, template_kwargs=kwargs).begin()
        conversation.observe([{"role": "user", "content": "Hi"}])
        assert tokenizer.decode(conversation.prompt_ids()).endswith(end)


def test_values_are_compared_as_json():
    ours = {"a": True, "b": {"c": 1, "d": 2}}
    assert differing({"a": True, "b": {"d": 2, "c": 1}}, ours) == []
    assert differing({"a": 1, "b": {"c": 1}, "e": None}, ours) == ["a", "b", "e"]
