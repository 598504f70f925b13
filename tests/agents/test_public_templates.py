"""Every text chat template of public models that trl ships: turn by turn equals the template's own rendering.

`EXPECTED` says which templates rewrite history, in which conversations, and why; docs/agents.md shows it.
"""

from importlib.resources import files
from pathlib import Path

import pytest

from turngym.agents import ChatAgent, ChatTemplate
from turngym.errors import TemplateError

NAMES = sorted(
    path.name.removesuffix(".jinja")
    for path in files("trl").joinpath("chat_templates").iterdir()
    if path.name.endswith(".jinja")
)
KINDS = ("plain", "thinking", "cut")
KEEPS = "keeps"
THOUGHTS = "takes out the thoughts of earlier turns"
ENDS = "ends an earlier answer differently"
REWRITES = "rewrites an earlier answer"
ALWAYS_STRIPPED = [
    "deepseek_r1_distill",
    "deepseekv3",
    "deepseekv3_training",
    "nemotron_3_5_lightning",
    "nemotron_3_5_lightning_training",
    "nemotron_3_nano",
    "nemotron_3_nano_training",
    "nemotron_3_super",
    "nemotron_3_super_training",
    "nemotron_3_ultra",
    "nemotron_3_ultra_training",
    "qwen3_5_nothink",
    "qwen3_5_think",
    "qwen3_6",
]
STRIPPED_IF_THERE = [
    "diffusion_gemma",
    "diffusion_gemma_training",
    "gemma4_v5",
    "glm4moe",
    "glm4moe_training",
    "lfm2_2_5",
    "lfm2_2_5_v2",
    "lfm2_2_5_vl",
    "qwen3",
]
# What the template does to (plain, thinking, cut) conversations; all others keep all three.
EXPECTED = {
    **dict.fromkeys(ALWAYS_STRIPPED, (THOUGHTS, THOUGHTS, THOUGHTS)),
    **dict.fromkeys(STRIPPED_IF_THERE, (KEEPS, THOUGHTS, KEEPS)),
    **dict.fromkeys(["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4"], (KEEPS, REWRITES, KEEPS)),
    **dict.fromkeys(["gptoss", "gptoss_training"], (ENDS, THOUGHTS, KEEPS)),
}
REFUSE_SYSTEM = {"gemma", "gemma_training"}


class Scenario:
    """One conversation of three turns as a model that follows its template would hold it."""

    def __init__(self, template: ChatTemplate, text: str, kind: str) -> None:
        shape = template.shape
        self.kind = kind
        self.before, self.between = shape.thought or ("<think>\n", "\n</think>\n\n")
        if not shape.thought and "<|channel>" in text:
            self.before, self.between = "<|channel>thought\n", "\n<channel|>"  # Gemma's, in the content
        self.has_field = shape.thought is not None
        self.is_open = bool(shape.opened) and "/" not in shape.opened
        self.opened = shape.opened
        self.header_rest = "" if shape.opened else shape.header_rest

    def turn(self, index: int) -> tuple[str, dict[str, str]]:
        """Return what the model writes, and the same as a message for the template."""
        answer, thought = f"The answer is {index}.", f"I am asked {index}."
        is_closed = bool(self.opened) and not self.is_open  # thinking is switched off
        if is_closed or (self.kind != "thinking" and not self.is_open):
            return self.header_rest + answer, {"role": "assistant", "content": answer}
        thought = thought if self.kind == "thinking" else ""
        whole = self.before + thought + self.between + answer
        spaces = "" if self.header_rest.strip() else self.header_rest
        written = spaces + whole.removeprefix(self.opened if self.is_open else "")
        if self.has_field:
            fields = {"reasoning_content": thought, "thinking": thought}
            return written.removeprefix(spaces), {"role": "assistant", "content": answer, **fields}
        return written, {"role": "assistant", "content": whole}


def observations(refuses_system: bool) -> list[list[dict[str, str]]]:
    users = [{"role": "user", "content": f"What is {index}?"} for index in range(3)]
    system = [] if refuses_system else [{"role": "system", "content": "Be brief."}]
    return [[*system, users[0]], [users[1]], [users[2]]]


def hold(tokenizer, kind, completion_of, sampling, refuses_system=False) -> list[str]:
    """Hold the conversation, check every prompt, and return what the template did after each turn."""
    agent = ChatAgent(tokenizer)
    template = ChatTemplate(tokenizer)
    scenario = Scenario(template, tokenizer.chat_template, kind)
    conversation, chat, before, verdicts = agent.begin(), [], "", []
    for index, new in enumerate(observations(refuses_system)):
        chat += [template.prepare(message) for message in new]
        conversation.observe(new)
        own = template.render(chat, add_generation_prompt=True)
        assert conversation.prompt_ids().tolist() == tokenizer.encode(own, add_special_tokens=False)
        if index:
            verdicts.append(KEEPS if own.startswith(before) else conversation.forks[-1])
            assert len(conversation.forks) == sum(verdict != KEEPS for verdict in verdicts)
        written, message = scenario.turn(index)
        ids = tokenizer.encode(written, add_special_tokens=False)
        ids += [] if kind == "cut" else agent.end_of_turn_ids
        conversation.record(completion_of(ids, is_cut=kind == "cut"), sampling)
        before = own + tokenizer.decode(ids)
        chat.append(template.prepare(message))
    check_actions(conversation, agent)
    return verdicts


def check_actions(conversation, agent) -> None:
    sequences = conversation.sequences()
    assert len(sequences) == 1 + len(conversation.forks)
    assert [sequence.fork_reason for sequence in sequences] == [None, *conversation.forks]
    assert sorted(turn for sequence in sequences for turn in set(sequence.turn[sequence.is_action])) == [0, 1, 2]
    for index, sequence in enumerate(sequences):
        if index:
            parent, shared = sequence.parent
            assert parent == index - 1
            assert (sequences[parent].token_ids[:shared] == sequence.token_ids[:shared]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_turn_by_turn_equals_own_rendering(name, kind, tokenizer_of, template_text, completion_of, sampling):
    verdicts = hold(tokenizer_of(template_text(name)), kind, completion_of, sampling, name in REFUSE_SYSTEM)
    wanted = EXPECTED.get(name, (KEEPS,) * 3)[KINDS.index(kind)]
    assert len(verdicts) == 2
    assert all(verdict == wanted or verdict.startswith(f"the template {wanted}:") for verdict in verdicts), verdicts


@pytest.mark.parametrize("name", sorted(REFUSE_SYSTEM))
def test_system_role_is_refused_in_the_templates_words(name, tokenizer_of, template_text):
    with pytest.raises(TemplateError, match="System role not supported"):
        ChatAgent(tokenizer_of(template_text(name))).begin().observe(observations(False)[0])


def test_expectations_name_templates_that_exist():
    assert {*EXPECTED, *REFUSE_SYSTEM} <= {*NAMES}
    assert len(NAMES) >= 40


def table() -> str:
    """The list that docs/agents.md shows."""
    families: dict[tuple[str, ...], list[str]] = {}
    for name in NAMES:
        families.setdefault(EXPECTED.get(name, (KEEPS,) * 3), []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {' | '.join(verdicts)} |" for verdicts, names in sorted(families.items())]
    return "\n".join(["| templates | plain | thinking | cut |", "|---|---|---|---|", *rows])


def test_docs_show_the_table():
    page = Path(__file__).parents[2] / "docs" / "agents.md"
    assert table() in page.read_text(encoding="utf-8"), table()
