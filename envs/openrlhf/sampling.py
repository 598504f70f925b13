"""The sampling parameters that agents of OpenRLHF see and change, and what changes mean here.

Ratios are only right for what the learner can follow: temperature, stops and lengths. Whatever else would change
the distribution is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import EnvError

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0, 1),
    "n": (1, None),
    "seed": (None,),
    "ignore_eos": (False,),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None, []),
    "bad_words": (None, []),
    "structured_outputs": (None,),
    "guided_decoding": (None,),
}
"""What vLLM's parameters may hold of those that nobody can follow."""


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

    def clone(self) -> "SamplingParams":
        """Return a copy that changes by itself, as vLLM's does."""
        return SamplingParams(**{**vars(self), "stop": list(self.stop), "stop_token_ids": list(self.stop_token_ids)})


def changes(params: object, given: SamplingParams, source: str) -> dict[str, Any]:
    """Return what is to be sampled otherwise than `given` says: of temperature, stop, stop_token_ids, max_tokens.

    Args:
        params: Ours, or vLLM's, of which `max_tokens` does not count (it is 16 unless set; OpenRLHF overwrites it too).
        given: What the agent was given.
        source: The agent's file, for messages.

    Raises:
        EnvError: They want what the learner cannot follow.
    """
    for name, neutral in NEUTRAL.items():
        if (value := getattr(params, name, neutral[0])) not in neutral:
            raise EnvError(_refusal(source, name, value, neutral[0]))
    for name in ("top_p", "top_k", "min_p"):
        before, value = getattr(given, name), getattr(params, name, None)
        if value is not None and value != before and not (name == "top_k" and {value, before} <= {-1, 0}):
            raise EnvError(_refusal(source, name, value, before))
    found: dict[str, Any] = {}
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
    return found


def _refusal(source: str, name: str, value: object, wanted: object) -> str:
    return (
        f"{source} set {name} of its sampling parameters to {value!r}: the learner cannot follow that, and "
        f"ratios would be wrong; leave it at {wanted!r} (temperature, stop, stop_token_ids and max_tokens may change)"
    )
