"""What an environment may change of how the turns to come are sampled.

That is what the learner can follow turn by turn, and truncations and a shape: their tokens stay out of importance
ratios.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...agents.base import Sampling
from ...agents.shape import Shape
from ...errors import EnvError
from ...registry import nearest
from .base import Conversation, EndsAtCalls
from .env_results import AfterCalls

CHANGEABLE = ("temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "max_tokens", "shape")


def ending_at_calls(sampling: Sampling, conversation: Conversation, how: AfterCalls | None) -> Sampling:
    """Return how to sample where nothing is to stand behind calls, of which the conversation is told.

    Args:
        sampling: The run's.
        conversation: With the model.
        how: What the environment wants; None for nothing.
    """
    if how is None or not isinstance(conversation, EndsAtCalls):
        return sampling
    mark = conversation.end_at_calls()
    if mark is None or how != "stop":
        return sampling
    return replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, mark))))


def resampled(first: Sampling, changes: Mapping[str, Any] | None, now: Sampling | None = None) -> Sampling:
    """Return the sampling of the run with an environment's changes; with none of them it is the run's again.

    Args:
        first: The run's, whose `max_tokens` stays a bound and whose `stop_token_ids` stay.
        changes: By the names of `Sampling`'s fields that are `CHANGEABLE`; a shape may be a mapping by the names of
            `Shape`'s fields. None says nothing.
        now: The sampling so far; by default the run's.

    Raises:
        EnvError: Something else is to change, or the value is none.
    """
    if changes is None:
        return now or first
    if not changes:
        return first
    for name in changes:
        if name not in CHANGEABLE:
            raise EnvError(f"an environment cannot change {name!r} of sampling.{nearest(str(name), CHANGEABLE)}")
    found = dict(changes)
    try:
        if "max_tokens" in found:
            found["max_tokens"] = min(first.max_tokens, int(found["max_tokens"]))
        if "stop" in found:
            found["stop"] = tuple(found["stop"])
        if "stop_token_ids" in found:
            found["stop_token_ids"] = tuple(dict.fromkeys((*found["stop_token_ids"], *first.stop_token_ids)))
        if isinstance(found.get("shape"), Mapping):
            found["shape"] = Shape(**found["shape"])
        return replace(first, **found)
    except (TypeError, ValueError) as error:
        raise EnvError(f"an environment asked for sampling with {dict(changes)!r}: {error}") from error
