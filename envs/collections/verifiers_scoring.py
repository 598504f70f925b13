"""Scores an episode with an environment's rubric; a reward function that raises is a failure and no reward of 0."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any

from ...errors import RewardError
from .verifiers_loading import rubrics_of

_RAISED: ContextVar[list[str]] = ContextVar("raised")


async def score(env: Any, state: Any) -> tuple[float, dict[str, float]]:
    """Return the reward and what each function gave.

    Raises:
        RewardError: One raised. The package itself logs that, and takes it for a 0.
    """
    for rubric in rubrics_of(env.rubric):
        rubric.funcs[:] = [_telling(function) for function in rubric.funcs]
    raised: list[str] = []
    _RAISED.set(raised)
    await env.render_completion(state)
    await env.rubric.score_group([state], score_sem=nullcontext())
    if raised:
        raise RewardError(f"the rubric could not score the episode: {'; '.join(raised)}")
    return float(state["reward"]), {name: float(value) for name, value in (state["metrics"] or {}).items()}


def _telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, but it notes what it raises."""
    if getattr(function, "tells", False):
        return function

    @functools.wraps(function)
    async def telling(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            _RAISED.get().append(f"{function.__name__} raised {type(error).__name__}: {error}")
            raise

    telling.tells = True  # type: ignore[attr-defined]
    return telling
