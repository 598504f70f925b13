"""The sampling parameters that agents of OpenRLHF see and change, and what changes mean here.

The learner follows temperature, stops and lengths. Truncations, penalties, biases and grammars change the distribution
in ways that it does not: tokens sampled under them are marked, and stay out of importance ratios (`agents.shape`).
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import EnvError

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1, None),
    "seed": (None,),
    "ignore_eos": (False,),
    "allowed_token_ids": (None, []),
}
"""What vLLM's parameters may hold of those that nothing here stands for."""

_SHAPELESS: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0, 1),
    "logit_bias": ({},),
    "bad_words": ([],),
}
"""By the names of `Shape`'s fields and vLLM's parameters, what leaves the distribution alone."""

_GRAMMARS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "ebnf"}
"""From vLLM's structured outputs to the kinds of `Grammar`."""


@dataclass
class SamplingParams:
    """How the next turn is sampled; an object of its own for each episode, with the names that vLLM uses."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int | None = None
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    logprobs: int | None = 1
    min_tokens: int = 1
    skip_special_tokens: bool = False
    include_stop_str_in_output: bool = True
    n: int = 1
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] = field(default_factory=list)
    structured_outputs: Any = None  # as vLLM's

    def clone(self) -> "SamplingParams":
        """Return a copy that changes by itself, as vLLM's does."""
        return copy.deepcopy(self)


def changes(params: object, given: SamplingParams, source: str) -> dict[str, Any]:
    """Return what is to be sampled otherwise than `given` says, as `executors.episodes.turn_sampling` takes it.

    Args:
        params: Ours, or vLLM's, of which `max_tokens` does not count (it is 16 unless set; OpenRLHF overwrites it too).
        given: What the agent was given.
        source: The agent's file, for messages.

    Raises:
        EnvError: They want what nothing here stands for.
    """
    found: dict[str, Any] = {}
    for name, neutral in NEUTRAL.items():
        if (value := getattr(params, name, neutral[0])) not in neutral:
            raise EnvError(_refusal(source, name, value, neutral[0]))
    for name in ("top_p", "top_k", "min_p"):
        before, value = getattr(given, name), getattr(params, name, None)
        if value is not None and value != before and not (name == "top_k" and {value, before} <= {-1, 0}):
            found[name] = value
    temperature = getattr(params, "temperature", None)
    if temperature is not None and temperature != given.temperature:
        if temperature <= 0:
            raise EnvError(_refusal(source, "temperature", temperature, given.temperature))
        found["temperature"] = float(temperature)
    for name in ("stop", "stop_token_ids"):
        value = getattr(params, name, None) or []
        listed = [value] if isinstance(value, str) else list(value)
        if listed != list(getattr(given, name)):
            found[name] = tuple(listed)
    if isinstance(params, SamplingParams) and params.max_tokens not in (None, given.max_tokens):
        found["max_tokens"] = params.max_tokens
    if shape := _shape(params, source):
        found["shape"] = shape
    return found


def _shape(params: object, source: str) -> dict[str, Any]:
    """Return what shapes the distribution, by the names of `Shape`'s fields."""
    found = {}
    for name, neutral in _SHAPELESS.items():
        value = getattr(params, name, None)
        if value is not None and value not in neutral:
            found[name] = tuple(value.items()) if isinstance(value, Mapping) else value
    for name in ("structured_outputs", "guided_decoding"):  # of newer vLLMs and of older ones
        if (wanted := getattr(params, name, None)) is not None:
            found["grammar"] = _grammar(wanted, name, source)
    return found


def _grammar(wanted: object, name: str, source: str) -> dict[str, str]:
    """Return what structured outputs say, by the names of `Grammar`'s fields."""
    said = dict(wanted) if isinstance(wanted, Mapping) else vars(wanted)
    given = {key: said[key] for key in (*_GRAMMARS, "json_object") if said.get(key)}
    if len(given) != 1:
        raise EnvError(
            f"{source} set {name} of its sampling parameters to {wanted!r:.200}; wanted one of {', '.join(_GRAMMARS)}"
        )
    ((key, value),) = given.items()
    if key == "json_object":
        return {"kind": key}
    return {"kind": _GRAMMARS[key], "text": value if isinstance(value, str) else json.dumps(value)}


def _refusal(source: str, name: str, value: object, wanted: object) -> str:
    return (
        f"{source} set {name} of its sampling parameters to {value!r}, which no turn is sampled with here; leave it at "
        f"{wanted!r}"
    )
