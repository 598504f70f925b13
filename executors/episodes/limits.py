"""The limits of one episode, and which of them a completion ran into."""

from dataclasses import dataclass, fields
from typing import NamedTuple

from ...agents.base import Completion, StopReason
from ...errors import ConfigError
from .trajectory import TurnEnd


@dataclass(frozen=True)
class Limits:
    """What one episode may use; None switches a limit off.

    Attributes:
        max_turns: Completions in one episode.
        max_turn_tokens: Tokens sampled in one completion.
        max_episode_tokens: Tokens sampled over all completions of the episode.
        max_context: Tokens of prompt, completions and observations together; the engine's own bound
            holds beside it.
        max_seconds: Of one episode. It stops a completion that is being sampled, but lets a running
            `step` end within `env_timeout_s`, since its tokens need their reward.
        env_timeout_s: Of making an environment, of one `reset` and of one `step`.
        generate_timeout_s: Of one completion.
    """

    max_turns: int = 32
    max_turn_tokens: int | None = None
    max_episode_tokens: int | None = None
    max_context: int | None = None
    max_seconds: float = 1800.0
    env_timeout_s: float = 60.0
    generate_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ConfigError(f"{field.name} must be greater than 0, got {value}")


class TokenBound(NamedTuple):
    """How many tokens one completion may have, and which limit says so."""

    max_tokens: int
    limit: TurnEnd

    def end_of(self, completion: Completion) -> TurnEnd:
        """Say why the completion ended."""
        if completion.stop_reason is StopReason.LENGTH:
            return self.limit
        return TurnEnd.ABORT if completion.stop_reason is StopReason.ABORT else TurnEnd.STOP


def token_bound(turn_tokens: int, episode_tokens_left: int | None, context_tokens_left: int) -> TokenBound:
    """Return the tightest of the three limits; of equal ones the one that also ends the episode."""
    fewest, limit = context_tokens_left, TurnEnd.CONTEXT_TOKENS
    if episode_tokens_left is not None and episode_tokens_left < fewest:
        fewest, limit = episode_tokens_left, TurnEnd.EPISODE_TOKENS
    if turn_tokens < fewest:
        fewest, limit = turn_tokens, TurnEnd.TURN_TOKENS
    return TokenBound(fewest, limit)
