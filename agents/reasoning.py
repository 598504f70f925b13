"""Reasoning parsers by name: what a model thought, apart from what it answered."""

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from ..errors import ConfigError
from ..registry import Registry
from .vllm_names import VLLM_REASONING_PARSERS, VLLM_TOOL_PARSERS, OfVllm

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DEFAULT_REASONING = "tags"
PAIRS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""What opens and closes a thought, by family; where a text has several, the first to stand in it counts."""

_MARKS = re.compile("|".join(re.escape(mark) for pair in PAIRS for mark in pair))
_JSON = (r'^\s*\[?\s*\{\s*"', r'\{\s*"(?:name|type|function)"')  # Llama writes calls behind text, too
_OUR_CALLS = (r"\[TOOL_CALLS\]", r"<\|python_tag\|>", r"<\|START_ACTION\|>", *_JSON)
_CALL = re.compile("|".join({*VLLM_TOOL_PARSERS.values(), *_OUR_CALLS}))


class Thought(NamedTuple):
    """An answer in two: its thoughts, None where it holds none, and the rest."""

    reasoning: str | None
    content: str


class ReasoningParser(Protocol):
    """Reads one model family's way of marking thoughts."""

    def split(self, text: str) -> Thought:
        """Take the thoughts out of an answer; whatever the model wrote, it never raises.

        Args:
            text: What the generation prompt opened on the model's behalf (such as `<think>`), and the answer with its
                special tokens, the end of the turn left out.
        """
        ...


@runtime_checkable
class FramesThoughts(Protocol):
    """A parser of thoughts that knows how they are marked, where that is otherwise than by `PAIRS`."""

    def answer_form(self, form: dict[str, Any]) -> dict[str, Any]:
        """Return the form of an answer that may begin with thoughts, where `form` is that of the rest.

        Both are xgrammar's formats.
        """
        ...


class TagThoughts:
    """Thoughts between `<think>` and `</think>`, or another pair of marks of this kind.

    A thought is what an answer begins with, and it ends at the first closing mark, as vLLM reads it; one that never
    ends has no answer. A closing mark that nothing opened ends one too, unless a call stands before it: the argument of
    a call may hold any mark, and so may an answer.
    """

    def split(self, text: str) -> Thought:
        """Take the thoughts out of an answer; see `ReasoningParser`."""
        first = _MARKS.search(text)
        if first is None:
            return Thought(None, text)
        opening, closing = next(pair for pair in PAIRS if first.group() in pair)
        before = text[: first.start()]
        is_thought = not before.strip() if first.group() == opening else _CALL.search(before) is None
        if not is_thought:
            return Thought(None, text)
        thought, _, content = text.partition(closing)
        return Thought(thought.strip().removeprefix(opening).strip("\n") or None, content.lstrip("\n"))


REASONING_PARSERS: Registry[type[ReasoningParser] | OfVllm] = Registry("reasoning parser")
REASONING_PARSERS.register(DEFAULT_REASONING)(TagThoughts)
REASONING_PARSERS.register_lazy("openai_gptoss", "turngym.agents.harmony:HarmonyThoughts")
for _name in ("cohere_command3", "cohere_command4"):
    REASONING_PARSERS.register(_name)(TagThoughts)
for _name in VLLM_REASONING_PARSERS:
    REASONING_PARSERS.register(_name)(OfVllm(_name))


def reasoning_parser(
    name: str = DEFAULT_REASONING, tokenizer: "PreTrainedTokenizerBase | None" = None
) -> ReasoningParser:
    """Return a parser; those of vLLM are made for a tokenizer.

    Raises:
        UnknownNameError: There is none of this name; names the nearest.
        ConfigError: It is not made for this tokenizer.
        MissingPackageError: It is vLLM's, which is not installed.
    """
    entry = REASONING_PARSERS[name]
    if not isinstance(entry, OfVllm):
        return entry()
    if tokenizer is None:
        raise ConfigError(f"the reasoning parser {name!r} is vLLM's, and wants the model's tokenizer")
    from .vllm_parsers import VllmThoughts

    return VllmThoughts(entry.name, tokenizer)
