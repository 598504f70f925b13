"""Fields of the four APIs' requests that are refused, and those that are ignored since no answer depends on them.

What is in neither table and no field of a request's class is nobody's: it is ignored too. A test walks through the
parameters of the `openai` and `anthropic` packages, so that none of theirs is such a one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Any  # what `json.loads` gives


@dataclass(frozen=True)
class Refusal:
    """Why a field is refused, and the values of it that ask for nothing."""

    reason: str
    harmless: tuple[Json, ...] = ()


_AUDIO = "nothing is spoken or heard here"
_STORED = "nothing is kept but responses; send the whole history, or a previous_response_id"

OF_VLLM: Mapping[str, Refusal] = {
    "ignore_eos": Refusal("an answer ends where the model ends it; min_tokens holds the end back", (False,)),
    "allowed_token_ids": Refusal("a grammar says what may come, logit_bias and bad_words what may not", ([],)),
    "prompt_logprobs": Refusal("the engine gives logprobs of what it sampled only", (0,)),
    "use_beam_search": Refusal("nothing is searched", (False,)),
    "chat_template": Refusal("the model's own template is used"),
    "continue_final_message": Refusal("an answer is never continued", (False,)),
    "include_stop_str_in_output": Refusal("an answer ends before its stop string; token ids tell all", (False,)),
    "truncate_prompt_tokens": Refusal("no prompt is cut; one that is too long is refused"),
}
OF_OPENAI: Mapping[str, Refusal] = {
    **OF_VLLM,
    "functions": Refusal("functions are given as `tools`", ([],)),
    "function_call": Refusal("functions are chosen by `tool_choice`", ("none", "auto")),
    "best_of": Refusal("choices are not ranked; use `n`", (1,)),
    "echo": Refusal("the prompt is not given back", (False,)),
    "suffix": Refusal("nothing is put in between", ("",)),
    "audio": Refusal(_AUDIO),
    "modalities": Refusal(_AUDIO, (["text"], [])),
    "web_search_options": Refusal("this server searches nothing; give the agent a tool that does"),
    "moderation": Refusal("nothing is moderated here"),
}
OF_RESPONSES: Mapping[str, Refusal] = {
    **OF_VLLM,
    "background": Refusal("an answer is given when it is there", (False,)),
    "background_options": Refusal("an answer is given when it is there", ({},)),
    "conversation": Refusal("no conversations are kept; go on from a previous_response_id", ("", {})),
    "context_management": Refusal("histories are never shortened here; the agent may do so", ([],)),
    "prompt": Refusal("no prompts are kept; send instructions and input"),
    "image": Refusal("no images are made here", ({},)),
    "moderation": Refusal("nothing is moderated here"),
}
OF_ANTHROPIC: Mapping[str, Refusal] = {
    **OF_VLLM,
    "container": Refusal("this server runs no code"),
    "mcp_servers": Refusal("this server calls no tools itself; the agent may", ([],)),
    "compaction": Refusal("nothing is summarised here; the agent may ask for a summary as for any answer"),
    "thread": Refusal(_STORED),
}

_TRANSPORT = "how, by whom and at what price an answer is computed"
_HINT = "advice; how the model thinks and writes is its own, and what its template is given"
_LABEL = "a label for people"
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("service_tier", "speed", "inference_geo", "workspace_id", "billing_policy"), _TRANSPORT),
    **dict.fromkeys(
        ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control"), _TRANSPORT
    ),
    **dict.fromkeys(("user", "safety_identifier", "user_profile_id", "metadata"), _LABEL),
    **dict.fromkeys(("reasoning_effort", "reasoning", "verbosity", "thinking"), _HINT),
    "prediction": "only makes an answer come sooner",
    "store": "who stores a completion cannot ask for it here; responses are kept",
    "access_programs": _TRANSPORT,
    "max_tool_calls": "bounds tools that the API's own servers run, and none are run here",
    "truncation": "counts where a context overflows, and there a request is refused",
    "stream_options": "of Responses: obfuscation only",
    "betas": "a header",
    "diagnostics": "tells of caches only",
    "context_management": "of Anthropic: what its servers clear; here the agent's history is the prompt",
    "fallbacks": "other models than the one that is trained",
    "fallback_credit_token": "other models than the one that is trained",
}


def refused(table: Mapping[str, Refusal], name: str, value: Json) -> str | None:
    """Return why a field may not have this value; None where it may."""
    found = table.get(name)
    if found is None or value is None or any(value == each and type(value) is type(each) for each in found.harmless):
        return None
    return found.reason
