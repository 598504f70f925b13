"""vLLM's parsers behind our protocols; importing them takes seconds, so most of this is slow."""

import json
import random
import re
import sys

import pytest

from turngym.agents.reasoning import REASONING_PARSERS, reasoning_parser
from turngym.agents.tool_calls import TOOL_PARSERS, tool_parser
from turngym.agents.vllm_names import CALL_ENDS, VLLM_REASONING_PARSERS, VLLM_TOOL_PARSERS
from turngym.errors import ConfigError, MissingPackageError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "array"}},
            },
        },
    }
]
ARGUMENTS = '{"a": 2, "b": "x"}'
OBJECT = '{"name": "add", "arguments": {"a": 2, "b": "x"}}'
TAGS = "<function=add>\n<parameter=a>\n2\n</parameter>\n<parameter=b>\nx\n</parameter>\n</function>"
DSML = (
    '<|DSML|invoke name="add">\n<|DSML|parameter name="a" string="false">2</|DSML|parameter>\n'
    '<|DSML|parameter name="b" string="true">x</|DSML|parameter>\n</|DSML|invoke>\n'
).replace("|", "\uff5c")
# Each whole, as the family's models write it; the last has no text before its call.
WHOLE = {
    "apertus": '<|tools_prefix|>[{"add": {"a": 2, "b": "x"}}]<|tools_suffix|>',
    "deepseek_v3": (
        f"Hi<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>add\n```json\n{ARGUMENTS}\n```"
        "<|tool▁call▁end|><|tool▁calls▁end|>"
    ).replace("|", "\uff5c"),
    "deepseek_v31": (
        f"Hi<|tool▁calls▁begin|><|tool▁call▁begin|>add<|tool▁sep|>{ARGUMENTS}<|tool▁call▁end|><|tool▁calls▁end|>"
    ).replace("|", "\uff5c"),
    "deepseek_v32": f"Hi\n\n<\uff5cDSML\uff5cfunction_calls>\n{DSML}</\uff5cDSML\uff5cfunction_calls>",
    "deepseek_v4": f"Hi\n\n<\uff5cDSML\uff5ctool_calls>\n{DSML}</\uff5cDSML\uff5ctool_calls>",
    "ernie45": f"<tool_call>\n{OBJECT}\n</tool_call>\n",
    "gemma4": '<|tool_call>call:add{a:2,b:<|"|>x<|"|>}<tool_call|>',
    "glm45": (
        "Hi\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n"
        "<arg_key>b</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"
    ),
    "granite": f"<|tool_call|>[{OBJECT}]",
    "granite-20b-fc": f"<function_call> {OBJECT}",
    "granite4": f"Hi<tool_call>\n{OBJECT}\n</tool_call>",
    "hunyuan_a13b": f"<tool_calls>[{OBJECT}]</tool_calls>",
    "internlm": f'Hi<|action_start|><|plugin|>{{"name": "add", "parameters": {ARGUMENTS}}}<|action_end|>',
    "jamba": f"Hi<tool_calls>[{OBJECT}]</tool_calls>",
    "kimi_k2": (
        "Hi<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        f"{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "lfm2": '<|tool_call_start|>[add(a=2, b="x")]<|tool_call_end|>Hi',
    "llama4_pythonic": '[add(a=2, b="x")]',
    "longcat": f"<longcat_tool_call>\n{OBJECT}\n</longcat_tool_call>",
    "minicpm5": '<function name="add"><param name="a">2</param><param name="b">x</param></function>',
    "minimax_m2": (
        'Hi\n<minimax:tool_call>\n<invoke name="add">\n<parameter name="a">2</parameter>\n'
        '<parameter name="b">x</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "olmo3": '<function_calls>add(a=2, b="x")</function_calls>',
    "phi4_mini_json": f"functools[{OBJECT}]",
    "pythonic": '[add(a=2, b="x")]',
    "qwen3_coder": f"Hi\n<tool_call>\n{TAGS}\n</tool_call>",
    "seed_oss": f"Hi<seed:tool_call>\n{TAGS}\n</seed:tool_call>",
    "step3p5": f"<tool_call>\n{TAGS}\n</tool_call>",
    "xlam": f"[{OBJECT}]",
}
# Tokens that some parsers want in the vocabulary.
MARKS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_calls>", "</tool_calls>", "<tool_sep>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<response>", "</response>", "<assistant>"),
    *("<|tool_call_start|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "</assistant>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>", "<|turn>", "<|tool_response>"),
    *("<minimax:tool_call>", "</minimax:tool_call>"),
    *("<|action_start|>", "<|action_end|>", "<|plugin|>", "<ifm|think>", "</ifm|think>", "<mm:think>", "</mm:think>"),
    *(f"<\uff5ctool▁{part}\uff5c>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")),
]
PIECES = [
    *MARKS,
    *(OBJECT, '{"name": "add", "arguments": {"a": ', "{", "}", "[", "]", '"', "\\", ",", "\n", "null", "NaN", "\ud800"),
    *("<function=add>", "<parameter=a>", "</parameter>", "</function>", "[add(", "add(a=2", ")", "functions.add:0"),
]
WANTS_MERGES = {"olmo3"}  # its reasoning parser looks for pieces of BPE


@pytest.fixture
def tokenizer(tokenizer_of):
    made = tokenizer_of(None)
    made.add_special_tokens({"additional_special_tokens": MARKS})
    return made


def written(whole: str) -> list[str]:
    rng = random.Random(0)
    mixed = ["".join(rng.choices(PIECES, k=rng.randint(1, 12))) for _ in range(20)]
    mixed += [whole.replace("2", deep) for deep in ("[" * 2000, '{"a":' * 2000)]
    return [*(whole[:stop] for stop in range(0, len(whole), 5)), whole + whole, whole.replace("2", whole), *mixed]


def installed(make, name: str, *arguments):
    """Make a parser; the older end of our vLLM range does not have all of them."""
    try:
        return make(name, *arguments)
    except ConfigError as error:
        if "is from another version" in str(error) or "instance of MistralTokenizer" in str(error):
            pytest.skip(str(error))
        raise


def arguments(name: str, text: str, tokenizer) -> list[object]:
    return [dict(call.arguments) for call in tool_parser(name, tokenizer, TOOLS).parse(text).calls]


def test_without_vllm_the_error_says_what_to_do(tokenizer, monkeypatch):
    for module in ("vllm", "vllm.reasoning", "vllm.tool_parsers"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=r"'glm45' is vLLM's.*pip install 'turngym\[gpu\]'"):
        tool_parser("glm45", tokenizer, TOOLS)
    with pytest.raises(MissingPackageError, match="'qwen3' is vLLM's"):
        reasoning_parser("qwen3", tokenizer)


@pytest.mark.slow
def test_all_that_vllm_lists_is_known():
    pytest.importorskip("vllm", minversion="0.32")  # our lists are those of the newer end of our range
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    assert {*ToolParserManager.list_registered()} - {*TOOL_PARSERS} == {"hf"}
    assert {*VLLM_TOOL_PARSERS} <= {*ToolParserManager.list_registered()}
    assert {*ReasoningParserManager.list_registered()} - {*REASONING_PARSERS} == {"hf"}
    assert {*VLLM_REASONING_PARSERS} <= {*ReasoningParserManager.list_registered()}


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_call_is_read(name, tokenizer):
    whole = WHOLE[name]
    content, (call,) = installed(tool_parser, name, tokenizer, TOOLS).parse(whole)
    assert (call.name, dict(call.arguments), call.problem) == ("add", {"a": 2, "b": "x"}, None)
    assert content == ("Hi" if "Hi" in whole else "")
    assert call.id == ("functions.add:0" if name == "kimi_k2" else None)


@pytest.mark.slow
@pytest.mark.parametrize("name", VLLM_TOOL_PARSERS)
def test_nothing_that_a_model_writes_raises(name, tokenizer):
    parser = installed(tool_parser, name, tokenizer, TOOLS)
    for text in written(WHOLE.get(name, WHOLE["ernie45"])):
        content, calls = parser.parse(text)
        assert isinstance(content, str)
        assert all(isinstance(call.arguments, dict) for call in calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", VLLM_TOOL_PARSERS)
def test_without_calls_the_text_stays_as_it_was_written(name, tokenizer):
    parser = installed(tool_parser, name, tokenizer, TOOLS)
    for text in ("Same today. Tomorrow at ", " 5\n\n"):
        assert parser.parse(text) == (text, ())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in VLLM_REASONING_PARSERS if name not in WANTS_MERGES])
def test_nothing_that_a_model_thinks_raises(name, tokenizer):
    parser = installed(reasoning_parser, name, tokenizer)
    for text in written("<think>Hm.</think>5"):
        reasoning, content = parser.split(text)
        assert isinstance(content, str)
        assert reasoning is None or isinstance(reasoning, str)


@pytest.mark.slow
def test_thoughts_are_split_off(tokenizer):
    for name in ("deepseek_r1", "qwen3", "glm45", "kimi_k2", "minimax_m2"):
        assert reasoning_parser(name, tokenizer).split("<think>Hm.</think>5") == ("Hm.", "5")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apertus", "glm45", "granite4", "internlm", "kimi_k2", "qwen3_coder", "deepseek_v3"])
def test_a_call_that_cannot_be_read_goes_back_to_the_model(name, tokenizer):
    whole = WHOLE[name]
    begin = whole.index("add")
    (call,) = tool_parser(name, tokenizer, TOOLS).parse(whole[: begin + 1]).calls
    assert call.problem or call.name in ("a", "functions.a")  # what was cut off in its name is no tool's


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALL_ENDS.keys() & WHOLE.keys()))
def test_a_call_that_is_cut_off_in_an_argument_is_not_made(name, tokenizer):
    whole = WHOLE[name]
    value = re.search(r'[>\n"](x)[<\n"]', whole).start(1)
    for stop in (value, value + 1):
        (call,) = installed(tool_parser, name, tokenizer, TOOLS).parse(whole[:stop]).calls
        assert call.problem


@pytest.mark.slow
def test_of_several_calls_the_one_that_cannot_be_read_is_told(tokenizer):
    good, bad = f"<tool_call>{OBJECT}</tool_call>", "<tool_call>{add 2}</tool_call>"
    calls = tool_parser("granite4", tokenizer, TOOLS).parse(good + bad).calls
    assert [bool(call.problem) for call in calls][-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v31"])
def test_a_mark_that_no_call_follows_is_text(name, tokenizer):
    text = "<\uff5ctool▁calls▁begin\uff5c>I will now"
    assert tool_parser(name, tokenizer, TOOLS).parse(text) == (text, ())


@pytest.mark.slow
def test_arguments_are_read_as_the_schema_wants_them_and_never_run(tokenizer, tmp_path):
    def given(parameter: str, value: str) -> list[object]:
        text = f"<tool_call><function=add><parameter={parameter}>{value}</parameter></function></tool_call>"
        return arguments("qwen3_coder", text, tokenizer)

    code = f'__import__("os").system("touch {tmp_path}/pwned")'
    assert given("a", "2026-01-15") == [{"a": "2026-01-15"}]  # the environment says that this is no integer
    assert given("a", "") == given("a", "None") == [{}]
    assert given("b", "") == [{"b": ""}]
    assert given("b", "None") == [{"b": "None"}]
    assert given("c", "[1, 2, 3]") == [{"c": [1, 2, 3]}]
    assert given("c", code) == [{"c": code}]
    assert not (tmp_path / "pwned").exists()


@pytest.mark.slow
def test_text_like_a_closing_mark_stays_in_its_argument(tokenizer):
    text = WHOLE["deepseek_v32"].replace(">x<", ">ls -la /nope 2>&1<")
    assert arguments("deepseek_v32", text, tokenizer) == [{"a": 2, "b": "ls -la /nope 2>&1"}]


@pytest.mark.slow
def test_texts_that_would_take_long_are_not_read(tokenizer):
    for name in ("gemma4", "granite", "pythonic"):
        for text in (WHOLE[name].replace("2", '{"a":' * 2000), WHOLE[name].replace("x", "x" * 40_000)):
            (call,) = tool_parser(name, tokenizer, TOOLS).parse(text).calls
            assert call.problem


@pytest.mark.slow
@pytest.mark.parametrize("properties", [{"a": True}, None, []])
def test_schemas_without_types_of_their_own_leave_arguments_as_text(properties, tokenizer):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    parser = tool_parser("glm45", tokenizer, [tool])
    text = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>"
    assert [call.arguments for call in parser.parse(text).calls] == [{"a": "b"}]


def test_tokenizers_and_schemas_that_do_not_fit_are_refused(tokenizer_of, tokenizer):
    bare = tokenizer_of(None)
    with pytest.raises(ConfigError, match="'deepseek_v3' is not made for this model's tokenizer"):
        tool_parser("deepseek_v3", bare, TOOLS)
    with pytest.raises(ConfigError, match="'deepseek_r1' is not made for this model's tokenizer"):
        reasoning_parser("deepseek_r1", bare)
    with pytest.raises(ConfigError, match="vLLM cannot read the schemas"):
        tool_parser("glm45", tokenizer, [json.loads('{"type": "function", "function": {"name": 3}}')])
