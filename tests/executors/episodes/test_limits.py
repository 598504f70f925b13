import numpy as np
import pytest

from turngym.agents.base import Completion, StopReason
from turngym.errors import ConfigError
from turngym.executors.episodes.limits import Limits, token_bound
from turngym.executors.episodes.trajectory import TurnEnd


@pytest.mark.parametrize(
    ("turn", "episode", "context", "max_tokens", "limit"),
    [
        (5, 9, 9, 5, TurnEnd.TURN_TOKENS),
        (9, 5, 9, 5, TurnEnd.EPISODE_TOKENS),
        (9, 9, 5, 5, TurnEnd.CONTEXT_TOKENS),
        (5, None, 9, 5, TurnEnd.TURN_TOKENS),
        (5, 5, 9, 5, TurnEnd.EPISODE_TOKENS),  # of equal limits the one that ends the episode is named
        (5, 5, 5, 5, TurnEnd.CONTEXT_TOKENS),
    ],
)
def test_the_tightest_limit_is_passed_and_named(turn, episode, context, max_tokens, limit):
    bound = token_bound(turn, episode, context)
    assert (bound.max_tokens, bound.limit) == (max_tokens, limit)


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (StopReason.STOP, TurnEnd.STOP),
        (StopReason.LENGTH, TurnEnd.EPISODE_TOKENS),
        (StopReason.ABORT, TurnEnd.ABORT),
    ],
)
def test_the_end_of_a_turn_follows_the_stop_reason(reason, end):
    one = np.ones(1, np.int32)
    completion = Completion(one, -np.ones(1, np.float32), one, reason)
    assert token_bound(9, 1, 9).end_of(completion) is end


@pytest.mark.parametrize("name", ["max_turns", "max_episode_tokens", "max_seconds", "env_timeout_s"])
def test_limits_of_zero_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})
