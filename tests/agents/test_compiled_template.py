"""Templates are rendered as transformers does it, in a sandbox as tight as its own."""

import pytest
from jinja2.exceptions import SecurityError

from turngym.agents.compiled_template import _Sandbox, compiled_template

WORDS = [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "a<b>c"}]
LOOP = """{%- for message in messages %}
{{- loop.index0 ~ loop.first ~ loop.last ~ loop.length ~ (loop.previtem or {}).role }}
{{- message.content.strip().split('<b>')[-1] | tojson }}{{ '{:>3}'.format(message.role) }}
{%- if message.name is defined %}{{ message.name }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ eos_token }}>{{ tools }}{{ mood }}{% endif %}"""


def test_it_renders_what_transformers_renders(tokenizer_of):
    tokenizer = tokenizer_of(LOOP)
    compiled = compiled_template(tokenizer, {"mood": "fair"}, None)
    assert compiled is not None
    for prompt in (True, False):
        wanted = tokenizer.apply_chat_template(WORDS, add_generation_prompt=prompt, tokenize=False, mood="fair")
        assert compiled.render({"messages": WORDS, "add_generation_prompt": prompt}) == wanted
        assert wanted.endswith(">Nonefair") == prompt


@pytest.mark.parametrize(
    "reach",
    [
        "''.__class__.__mro__",
        "loop.__init__.__globals__",
        "loop._iterable.pop()",
        "messages.append(1)",
        "messages[0].update(role='x')",
        "'{0.__class__.__mro__}'.format(messages)",
        "raise_exception.__globals__.x",
    ],
)
def test_it_reaches_nothing_that_the_sandbox_keeps_from_it(tokenizer_of, reach):
    tokenizer = tokenizer_of("{% for message in messages %}{{ " + reach + " }}{% endfor %}")
    compiled = compiled_template(tokenizer, {}, None)
    assert compiled is not None
    assert isinstance(compiled._template.environment, _Sandbox)
    with pytest.raises(SecurityError):
        compiled.render({"messages": WORDS, "add_generation_prompt": False})
    with pytest.raises(SecurityError):  # as in transformers' own
        tokenizer.apply_chat_template(WORDS, tokenize=False)
