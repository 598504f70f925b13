"""What a run gives to its chat template beside messages, and whether a request wants the same."""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..registry import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPTION = "--rollout.chat_template_kwargs"
# What prompts are made of, or what decides the form of `apply_chat_template`'s result.
_TAKEN = {
    "messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt", "tokenize", "padding",
    "continue_final_message", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs",
    "return_assistant_tokens_mask",
}  # fmt: skip


def parse_template_kwargs(text: str | None) -> dict[str, Any]:  # Any: what templates take
    """Return what --rollout.chat_template_kwargs says.

    Raises:
        ConfigError: It is no JSON object, or names what a prompt is made of.
    """
    try:
        given = json.loads(text or "{}")
    except json.JSONDecodeError:
        given = None
    if not isinstance(given, dict):
        raise ConfigError(f"{OPTION}: wanted a JSON object such as '{{\"enable_thinking\": false}}', got {text!r}")
    if taken := _TAKEN & given.keys():
        raise ConfigError(f"{OPTION}: {min(taken)!r} is given by the conversation, or by the run itself")
    return given


def check_template_kwargs(tokenizer: "PreTrainedTokenizerBase", given: Mapping[str, Any]) -> None:
    """Refuse what a model's chat template does not read.

    Raises:
        ConfigError: There is no template, or one of these is no name in it.
    """
    words = _words(str(tokenizer.chat_template or ""))
    if given and not words:
        raise ConfigError(f"{OPTION} is for a chat template, and this model's tokenizer has none; leave it out")
    for name in given:
        if name not in words:
            raise ConfigError(
                f"{OPTION}: the chat template of this model reads no {name!r}.{nearest(name, sorted(words))}"
            )


def differing(wanted: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return what a request wants otherwise than the run has it."""
    return [name for name, value in wanted.items() if name not in ours or _as_text(value) != _as_text(ours[name])]


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # true is not 1


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
