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


def tool_named(name):
    return {"type": "function", "function": {"name": name, "description": "Any.", "parameters": {"type": "object"}}}


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
        pytest.param(
            *("muse_glimmer", NUMBER, (), "stand in channels, of which no grammar is known"),
            marks=pytest.mark.slow,  # vLLM's parser
        ),
        ("gptoss", None, [tool_named("a b")], "no grammar is known of calls that 'openai' reads"),
    ],
)
def test_what_cannot_be_written_as_a_grammar_is_refused(grammar_of, name, said, tools, words):
    with pytest.raises(RequestRefusedError, match=words):
        grammar_of(name, said, tools, must_call=bool(tools))


MISTRAL = "{% for m in messages %}[INST]{{ m.content }}{% endfor %}{{ tools }}{# [TOOL_CALLS] #}"
COHERE = "{% for m in messages %}<|START_OF_TURN_TOKEN|>{{ m.content }}{% endfor %}{{ tools }}{# <|START_ACTION|> #}"
PLACE = '{"place": "Oslo"}'


def cohere(*calls):
    items = [
        f'{{"tool_call_id": "{place}", "tool_name": "{name}", "parameters": {arguments}}}'
        for place, (name, arguments) in enumerate(calls)
    ]
    return "<|START_ACTION|>[\n    " + ",\n    ".join(items) + "\n]<|END_ACTION|>"


CASES = {
    "mistral": (
        MISTRAL,
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        [
            f"[TOOL_CALLS]time[ARGS]{PLACE}",
            f"[TOOL_CALLS]time[CALL_ID]a1B2c3D4e[ARGS]{PLACE}",
            f'[TOOL_CALLS][{{"name": "time", "arguments": {PLACE}}}]',
        ],
        [
            f"[TOOL_CALLS]weather[ARGS]{PLACE}[TOOL_CALLS]time[ARGS]{PLACE}",
            f'[TOOL_CALLS][{{"name": "weather", "arguments": {PLACE}}}, {{"name": "time", "arguments": {PLACE}}}]',
        ],
        ['{"n": 3}'],
    ),
    "cohere_command3": (
        COHERE,
        ("<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        [cohere(("time", PLACE))],
        [cohere(("weather", '{"place": "Rome"}'), ("time", PLACE))],
        ['<|START_RESPONSE|>{"n": 3}<|END_RESPONSE|>', '{"n": 3}'],
    ),
    "openai": (
        "gptoss",
        (),
        [
            f"<|channel|>commentary to=functions.time <|constrain|>json<|message|>{PLACE}",
            f" to=functions.time<|channel|>commentary json<|message|>{PLACE}",
            "<|channel|>analysis<|message|>Which? {<|end|><|start|>assistant"
            f"<|channel|>commentary to=functions.time <|constrain|>json<|message|>{PLACE}",
        ],
        [],
        [
            '<|channel|>final<|message|>{"n": 3}',
            '<|channel|>final <|constrain|>json<|message|>{"n": 3}',
            '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{"n": 3}',
        ],
    ),
}


@pytest.fixture
def engine_of(tokenizer_of, template_text):
    """Return an agent, and what says whether an engine held to a grammar could sample a text and then end its turn."""
    xgrammar = pytest.importorskip("xgrammar", reason="the library that vLLM reads grammars with")

    def made(name):
        template, marks, *_ = CASES[name]
        tokenizer = tokenizer_of(template if "{" in template else template_text(template))
        tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
        stops = [tokenizer.eos_token_id, *map(tokenizer.convert_tokens_to_ids, ["<|call|>", "<|return|>"])]
        stops = [stop for stop in stops if stop is not None]
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        compiler = xgrammar.GrammarCompiler(info)

        def samples(grammar, text) -> bool:
            xgrammar.Grammar.from_structural_tag(grammar.text)  # as vLLM checks it, without a tokenizer
            compiled = compiler.compile_structural_tag(grammar.text)
            matcher = xgrammar.GrammarMatcher(compiled, override_stop_tokens=stops)
            for token in [*tokenizer.encode(text, add_special_tokens=False), stops[-1]]:
                mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
                matcher.fill_next_token_bitmask(mask)
                if not (int(mask[0][token // 32]) >> (token % 32)) & 1:
                    return False
                assert matcher.accept_token(token)
            return matcher.is_terminated()

        return ChatAgent(tokenizer), samples

    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_marks_that_are_special_tokens_are_sampled_under_a_grammar(engine_of, name):
    agent, samples = engine_of(name)
    reader = agent.reader(TOOLS)
    assert reader.names[1] == name
    _, _, single, several, said = CASES[name]

    def grammar(form=None, tools=TOOLS, **options):
        return answer_grammar(reader if tools else agent.reader(), agent.readers.template, form, tools, **options)

    forced, alone, beside = grammar(must_call=True), grammar(must_call=True, is_parallel=False), grammar(NUMBER)
    for text in single:
        assert samples(forced, text), text
        assert samples(alone, text), text
        assert samples(beside, text), text
        assert not samples(forced, text.replace("time", "news")), text
        assert not samples(forced, text.replace('"Oslo"', "7")), text
        assert not samples(forced, text.replace("}", "}!", 1)) or "analysis" in text, text
        read = reader.read(text)
        assert [(call.name, call.arguments, call.problem) for call in read.calls] == [("time", {"place": "Oslo"}, None)]
        assert read.content == ""
    for text in several:
        assert samples(forced, text), text
        assert samples(beside, text), text
        assert not samples(alone, text), text
        assert [(call.name, call.problem) for call in reader.read(text).calls] == [("weather", None), ("time", None)]
    for text in said:
        assert samples(beside, text), text
        assert not samples(forced, text), text
        assert not samples(beside, text.replace("3", '"three"')), text
        assert reader.read(text).content == '{"n": 3}'
    assert not samples(forced, "It is noon.")
    assert not samples(beside, "It is noon.")


@pytest.mark.slow
def test_a_channel_says_one_thing(engine_of):
    agent, samples = engine_of("openai")
    grammar = answer_grammar(agent.reader(), agent.readers.template, NUMBER)
    first, *others = CASES["openai"][4]
    assert samples(grammar, first)
    assert all(samples(grammar, text) for text in others)
    assert not samples(grammar, f"{first}<|end|><|start|>assistant{first}")
    thought = "<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>Three.<|end|>"
    assert not samples(grammar, f"{thought}<|start|>assistant{first}")
    assert not samples(grammar, CASES["openai"][2][0])
    assert agent.reader().read(others[-1]) == ("Hm.", '{"n": 3}', ())


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
