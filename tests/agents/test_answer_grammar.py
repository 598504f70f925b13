"""Grammars of whole answers: what they let through, as vLLM's own library reads them, and what parsers read in it."""

import json

import pytest

from turngym.agents import ChatAgent, Grammar
from turngym.agents.answer_grammar import answer_grammar
from turngym.agents.base import RequestRefusedError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up {name}.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}},
                "required": ["place"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "time")
]
CALL = '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo"}}\n</tool_call>'
LLAMA = '{"name": "time", "parameters": {"place": "Oslo"}}'
NUMBER = Grammar.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.fixture
def grammar_of(tokenizer_of, template_text):
    """Return the grammar of a model's answers, by the name of its template, and what reads them."""

    def made(name, said=None, tools=(), tool_parser=None, **options):
        agent = ChatAgent(tokenizer_of(template_text(name)), tool_parser=tool_parser)
        reader = agent.reader(tools)
        return answer_grammar(reader, agent.readers.template, said, tools, **options), reader

    return made


def accepts(grammar, text):
    testing = pytest.importorskip("xgrammar.testing", reason="the library that vLLM reads grammars with")
    import xgrammar

    return testing._is_grammar_accept_string(xgrammar.Grammar.from_structural_tag(grammar.text), text)


def test_nothing_is_forced_where_nothing_is_asked(grammar_of):
    assert grammar_of("qwen2_5", tools=TOOLS)[0] is None
    assert grammar_of("qwen2_5", NUMBER)[0] is NUMBER  # as it was given: nothing goes before it


@pytest.mark.slow
@pytest.mark.parametrize(("name", "call", "gap"), [("qwen2_5", CALL, "\n"), ("llama3_1", LLAMA, "; ")])
def test_a_call_is_forced_in_the_models_own_format(grammar_of, name, call, gap):
    grammar, reader = grammar_of(name, tools=TOOLS, must_call=True)
    assert accepts(grammar, call)
    assert accepts(grammar, call + gap + call)
    assert not accepts(grammar, "It is noon.")
    assert not accepts(grammar, call.replace("time", "news"))
    assert not accepts(grammar, call.replace('"Oslo"', "7"))
    (read,) = reader.read(call).calls
    assert (read.name, read.arguments, read.problem) == ("time", {"place": "Oslo"}, None)
    assert len(reader.read(call + gap + call).calls) == 2
    single, _ = grammar_of(name, tools=TOOLS, must_call=True, is_parallel=False)
    assert accepts(single, call)
    assert not accepts(single, call + gap + call)


@pytest.mark.slow
def test_beside_tools_an_answer_is_a_call_or_has_the_form(grammar_of):
    grammar, _ = grammar_of("qwen2_5", NUMBER, TOOLS)
    assert accepts(grammar, '{"n": 3}')
    assert accepts(grammar, CALL)
    assert not accepts(grammar, '{"n": "three"}')
    assert not accepts(grammar, f'{{"n": 3}}{CALL}')


@pytest.mark.slow
def test_a_thought_may_come_first_where_the_model_thinks(grammar_of):
    grammar, reader = grammar_of("qwen3", NUMBER)
    assert accepts(grammar, '{"n": 3}')
    assert accepts(grammar, '<think>\nHm, {"n": 2}?\n</think>\n\n{"n": 3}')
    assert not accepts(grammar, "<think>\nHm.\n</think>\n\nThree.")
    assert reader.read('<think>\nHm.\n</think>\n\n{"n": 3}') == ("Hm.", '{"n": 3}', ())


@pytest.mark.slow
def test_a_thought_that_the_prompt_has_begun_is_ended_first(grammar_of):
    for said, text in (
        (NUMBER, '{"n": 3}'),
        (Grammar.json_object(), '{"a": []}'),
        (Grammar.choice(["yes", "no"]), "no"),
        (Grammar.regex("a{3}"), "aaa"),
        (Grammar.ebnf('root ::= "b" | "c" root'), "ccb"),
    ):
        grammar, reader = grammar_of("qwen3_5_think", said)
        assert accepts(grammar, f"Hm.\n</think>\n\n{text}")
        assert not accepts(grammar, text)
        assert not accepts(grammar, f"Hm.\n</think>\n\n{text}!")
        assert reader.read(f"Hm.\n</think>\n\n{text}") == ("Hm.", text, ())


@pytest.mark.parametrize(
    ("name", "said", "tools", "words"),
    [
        ("gptoss", NUMBER, (), "channels of special tokens"),
        ("gptoss", None, TOOLS, "channels of special tokens"),
        ("qwen2_5", None, TOOLS, "no grammar is known of calls that 'mistral' reads"),
    ],
)
def test_what_cannot_be_written_as_a_grammar_is_refused(grammar_of, name, said, tools, words):
    with pytest.raises(RequestRefusedError, match=words):
        grammar_of(name, said, tools, "mistral" if name == "qwen2_5" else None, must_call=bool(tools))


@pytest.mark.slow
def test_vllms_parsers_bring_their_own_form(grammar_of):
    pytest.importorskip("vllm", minversion="0.32")  # before, this parser wants its marks to be tokens
    grammar, reader = grammar_of("qwen3_5_nothink", tools=TOOLS, must_call=True)
    call = "<tool_call>\n<function=time>\n<parameter=place>\nOslo\n</parameter>\n</function>\n</tool_call>"
    assert accepts(grammar, call)
    assert not accepts(grammar, "It is noon.")
    assert json.loads(grammar.text)["type"] == "structural_tag"
    (read,) = reader.read(call).calls
    assert (read.name, read.arguments) == ("time", {"place": "Oslo"})
