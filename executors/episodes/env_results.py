"""What environments return, checked: whatever breaks the contract becomes an error that says how."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from ...envs.messages import Message, RawText, as_messages
from ...errors import EnvError, RewardError

AfterCalls = Literal["stop", "cut"]


class Info(NamedTuple):
    """What executors read of an info dict; the rest is the environment's own."""

    score: float | None
    extra_logs: dict[str, float]
    sampling: Mapping[str, Any] | None = None  # how to sample the turns to come; Any: see `turn_sampling`


class ResetResult(NamedTuple):
    """A checked result of `reset`."""

    observation: list[Message] | RawText
    info: Info
    tools: tuple[dict[str, Any], ...] = ()  # schemas that the model is told of; Any: they are JSON
    after_calls: AfterCalls | None = None  # what becomes of what stands behind the calls of an answer; None: it stays


class StepOutcome(NamedTuple):
    """A checked result of `step`; `is_silent` says that the observation is empty."""

    observation: list[Message] | RawText
    is_silent: bool
    reward: float
    terminated: bool
    truncated: bool
    info: Info


def checked_reset(result: object, name: str) -> ResetResult:
    """Check what `reset` returned; `name` is the environment's, for messages."""
    source = f"{name}.reset"
    observation, info = _unpacked(result, 2, source, "(observation, info)")
    messages = as_messages(observation, source)
    if len(messages) == 0:
        raise EnvError(f"{source} returned an empty observation; the model needs something to answer")
    checked = _info(info, source)
    tools = info.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise EnvError(f"{source} returned tools as {tools!r:.200}; wanted a list of OpenAI function schemas")
    after_calls = info.get("after_calls")
    if after_calls is not None and after_calls not in get_args(AfterCalls):
        raise EnvError(f"{source} returned after_calls as {after_calls!r:.200}; wanted 'stop', 'cut' or None")
    return ResetResult(messages, checked, tuple(tools), after_calls)


def checked_step(result: object, name: str) -> StepOutcome:
    """Check what `step` returned; `name` is the environment's, for messages."""
    source = f"{name}.step"
    parts = _unpacked(result, 5, source, "(observation, reward, terminated, truncated, info)")
    observation, reward, terminated, truncated, info = parts
    return StepOutcome(
        observation=as_messages(observation, source),
        is_silent=len(observation) == 0,
        reward=_finite(reward, f"{source}'s reward"),
        terminated=_boolean(terminated, f"{source}'s terminated"),
        truncated=_boolean(truncated, f"{source}'s truncated"),
        info=_info(info, source),
    )


def _unpacked(result: object, length: int, source: str, wanted: str) -> tuple[Any, ...]:
    if not isinstance(result, tuple) or len(result) != length:
        came = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"{type(result).__name__}"
        raise EnvError(f"{source} returned {came}; wanted {wanted}")
    return result


def _info(info: object, source: str) -> Info:
    if type(info) is not dict and not isinstance(info, Mapping):  # asking an abstract class takes its time
        raise EnvError(f"{source} returned an info of type {type(info).__name__}; wanted a dict")
    logs, score = info.get("extra_logs") or {}, info.get("score")
    if type(logs) is not dict and not isinstance(logs, Mapping):
        raise EnvError(f"{source} returned extra_logs of type {type(logs).__name__}; wanted a dict of numbers")
    sampling = info.get("sampling")
    if sampling is not None and type(sampling) is not dict and not isinstance(sampling, Mapping):
        raise EnvError(f"{source} returned sampling of type {type(sampling).__name__}; wanted a dict")
    return Info(
        score=None if score is None else _finite(score, f"{source}'s score"),
        extra_logs={str(key): _finite(value, f"{source}'s extra_logs[{key!r}]") for key, value in logs.items()},
        sampling=sampling,
    )


def _finite(value: object, what: str) -> float:
    """Return a number as a float; None, NaN and what is no number are never read as 0."""
    try:
        if isinstance(value, str | bytes) or value is None:
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a torch tensor of several elements
        raise RewardError(f"{what} is {value!r}; wanted a finite number") from None
    if not math.isfinite(number):
        raise RewardError(f"{what} is {number}; wanted a finite number")
    return number


def _boolean(value: object, what: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise EnvError(f"{what} is {value!r} of type {type(value).__name__}; wanted a bool")
    return bool(value)
