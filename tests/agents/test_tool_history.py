"""A call and its result, with every public template that tells of tools: shown as it renders them, without a fork.

The model writes the call as the template itself does; most of these formats are read by vLLM's parsers, which take
seconds to import.
"""

from importlib.resources import files

import pytest

from turngym.agents import ChatAgent
from turngym.agents.parser_guess import guess_tool_parser
from turngym.agents.tool_calls import TOOL_PARSERS
from turngym.agents.vllm_names import OfVllm

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "A."},
                    "b": {"type": "string", "description": "B."},
                },
                "required": ["a"],
            },
        },
    }
]
TEMPLATES = {
    path.name.removesuffix(".jinja"): path.read_text(encoding="utf-8")
    for path in files("trl").joinpath("chat_templates").iterdir()
    if path.name.endswith(".jinja")
}
USER = {"role": "user", "content": "2 + 3?"}
CALL = {"type": "function", "id": "call_0", "function": {"name": "add", "arguments": {"a": 2, "b": "x"}}}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call_0", "content": "zq5qz"}


def marked(name):
    is_slow = isinstance(TOOL_PARSERS[guess_tool_parser(TEMPLATES[name]).name], OfVllm)
    return pytest.param(name, marks=pytest.mark.slow) if is_slow else name


def answer(thought: str | None) -> dict[str, object]:
    fields = {} if thought is None else {"reasoning_content": thought, "thinking": thought}
    return {"role": "assistant", "content": "", "tool_calls": [CALL], **fields}


@pytest.mark.parametrize("thought", [None, "I add."])
@pytest.mark.parametrize("name", [marked(name) for name in sorted(TEMPLATES) if "tools" in TEMPLATES[name]])
def test_history_goes_on(name, thought, tokenizer_of, completion_of, sampling):
    more = "{#<|tool_call_start|><|tool_call_end|>#}" if name.startswith("lfm2") else ""  # tokens of its tokenizer
    tokenizer = tokenizer_of(TEMPLATES[name] + more)
    agent = ChatAgent(tokenizer)
    conversation = agent.begin(TOOLS)
    template = conversation._told.template
    conversation.observe([USER])
    prompt = tokenizer.decode(conversation.prompt_ids())
    said = answer(thought)
    whole = template.render([USER, said], add_generation_prompt=False)
    if not whole.startswith(prompt):
        pytest.skip("its generation prompt wants thoughts, or none")
    ids = tokenizer.encode(whole.removeprefix(prompt), add_special_tokens=False)
    ends = [place for place, token_id in enumerate(ids) if token_id in agent.end_of_turn_ids]
    ids = ids[: ends[0] + 1] if ends else ids
    action = conversation.record(completion_of(ids), sampling)
    assert [(call.name, dict(call.arguments)) for call in action.parsed.calls] == [("add", {"a": 2, "b": "x"})]
    conversation.observe([RESULT])
    own = template.render([USER, said, RESULT], add_generation_prompt=True)
    assert tokenizer.decode(conversation.prompt_ids()) == own
    assert conversation.forks == ()
    (sequence,) = conversation.sequences()
    assert sequence.token_ids[sequence.is_action].tolist() == ids
