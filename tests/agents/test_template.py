"""What is found out about a template, and how it refuses."""

import pytest

from turngym.agents import ChatTemplate
from turngym.errors import ConfigError, TemplateError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture
def shape_of(tokenizer_of, template_text):
    return lambda name, **kwargs: ChatTemplate(tokenizer_of(template_text(name)), template_kwargs=kwargs).shape


def test_shape_of_a_plain_template(shape_of):
    shape = shape_of("qwen2_5")
    assert (shape.takes_parts, shape.opened, shape.header_rest, shape.thought) == (False, "", "", None)
    assert shape.ends == ("<|im_end|>\n", "<|im_end|>\n<|im_start|>user\n")


def test_shape_of_an_opened_thought(shape_of):
    assert shape_of("qwen3").opened == ""
    assert shape_of("qwen3", enable_thinking=False).opened == "<think>\n\n</think>\n\n"
    assert shape_of("qwen3_5_think").opened == "<think>\n"
    assert shape_of("qwen3_5_think").thought == ("<think>\n", "\n</think>\n\n")
    assert shape_of("deepseekv3").thought is None


def test_shape_of_a_header_that_the_model_writes(shape_of):
    shape = shape_of("gptoss")
    assert shape.header_rest == "<|channel|>final<|message|>"
    assert shape.ends[0] == "<|return|>"
    assert shape.ends[1].startswith("<|end|>")
    assert shape.is_end("<|return|>")
    assert shape.is_end("<|end|>")
    assert not shape.is_end("<|call|>")


def test_vision_template_takes_text_as_parts(shape_of, tokenizer_of, template_text):
    assert shape_of("smolvlm").takes_parts
    template = ChatTemplate(tokenizer_of(template_text("smolvlm")))
    message = template.prepare({"role": "user", "content": "Hi"})
    assert message["content"] == [{"type": "text", "text": "Hi"}]
    assert template.render([message], add_generation_prompt=True) == (
        "<|im_start|>User: Hi<end_of_utterance>\nAssistant:"
    )


def test_text_parts_are_joined_where_a_template_wants_text(tokenizer_of):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate(tokenizer_of(CHATML)).prepare({"role": "user", "content": parts})["content"] == "ab"


def test_other_keys_of_a_message_reach_the_template(tokenizer_of):
    template = ChatTemplate(tokenizer_of(CHATML.replace("m.role", "(m.name or m.role)")))
    message = template.prepare({"role": "user", "content": "x", "name": "Ann"})
    assert template.render([message], add_generation_prompt=False) == "<|im_start|>Ann\nx<|im_end|>\n"


def test_parts_other_than_text_are_refused(tokenizer_of):
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(TemplateError, match="role 'user' holds parts of type image_url, where only text"):
        ChatTemplate(tokenizer_of(CHATML)).prepare({"role": "user", "content": parts})


def test_template_exceptions_come_in_the_templates_words(tokenizer_of, template_text):
    template = ChatTemplate(tokenizer_of(template_text("gemma")))
    with pytest.raises(TemplateError, match=r"roles: user, user\): Conversation roles must alternate"):
        template.render([{"role": "user", "content": "a"}] * 2, add_generation_prompt=True)


def test_errors_inside_a_template_are_template_errors(tokenizer_of):
    template = ChatTemplate(tokenizer_of(CHATML))
    with pytest.raises(TemplateError, match="roles: tool"):
        template.render([{"role": "tool", "content": None}], add_generation_prompt=True)


def test_missing_template_says_what_to_do(tokenizer_of):
    with pytest.raises(ConfigError, match="no chat template; give it one"):
        ChatTemplate(tokenizer_of(None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('not today') }}", "not today"),
        ("{% if %}", "Expected an expression"),
        ("nothing of the messages", "does not show what a user says"),
    ],
)
def test_template_that_renders_no_conversation_is_refused_at_once(tokenizer_of, text, message):
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(tokenizer_of(text))


def test_tools_are_rendered(tokenizer_of, template_text):
    tool = {"type": "function", "function": {"name": "add_up", "parameters": {"type": "object", "properties": {}}}}
    template = ChatTemplate(tokenizer_of(template_text("qwen2_5")), tools=[tool])
    assert '"name": "add_up"' in template.render([{"role": "user", "content": "x"}], add_generation_prompt=True)


def test_after_answer_is_end_messages_and_prompt(tokenizer_of):
    template = ChatTemplate(tokenizer_of(CHATML))
    text = template.after_answer([{"role": "user", "content": "x"}], add_generation_prompt=True)
    assert text == "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_rendering_is_what_the_tokenizer_renders(tokenizer_of):
    """With all that a template may ask for: tools, the tokenizer's own tokens, options, the time."""
    text = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{{ tools | tojson }}{{ documents is none }}{{ mood }}{{ nothing }}"
        "{% for message in messages %}{{ loop.index }}{{ message.role }}{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}?{% endif %}"
    )
    tokenizer, tools = tokenizer_of(text), [{"type": "function", "function": {"name": "look"}}]
    template = ChatTemplate(tokenizer, template_kwargs={"mood": "glad"}, tools=tools)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    for prompt in (False, True):
        wanted = tokenizer.apply_chat_template(
            messages, add_generation_prompt=prompt, tokenize=False, tools=tools, mood="glad"
        )
        assert template.render(messages, add_generation_prompt=prompt) == wanted
    assert template.render(messages, add_generation_prompt=True, strftime_now=lambda _: "1999").startswith("<bos>1999")


def test_a_tokenizer_that_renders_in_a_way_of_its_own_is_asked(tokenizer_of):
    tokenizer = tokenizer_of("{% for message in messages %}{{ message['content'] }}{% endfor %}")

    class Shouting(type(tokenizer)):
        def apply_chat_template(self, *args, **kwargs):
            return super().apply_chat_template(*args, **kwargs) + "!"

    tokenizer.__class__ = Shouting
    template = ChatTemplate(tokenizer)
    assert template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True) == "Hi!"


def test_an_option_that_the_tokenizer_reads_itself_reaches_it(tokenizer_of):
    tokenizer = tokenizer_of("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    other = "{% for message in messages %}<{{ message['content'] }}>{% endfor %}"
    template = ChatTemplate(tokenizer, template_kwargs={"chat_template": other})
    assert template.render([{"role": "user", "content": "Hi"}], add_generation_prompt=True) == "<Hi>"
