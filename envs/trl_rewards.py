"""Reward functions written for TRL: `(prompts, completions, **columns)`, one or a list of them.

A file has them as `reward_funcs`, or one as `reward_func` that takes `completions`. They see what TRL shows them:
prompts in the form of the dataset, completions in the same form without special tokens, the other columns by name.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..errors import ConfigError, RewardError
from .messages import Message
from .reward import Reward, parse_rewards
from .task import Task
from .user_calls import UserCalls

Function = Callable[..., Any]
# What TRL passes and nothing here knows; functions that have a default for it work.
_NOT_KNOWN = ("completion_ids", "trainer_state", "log_extra", "environments")


def trl_functions(module: ModuleType) -> list[Function]:
    """Return the functions of TRL's kind that a module offers; none where it has another contract.

    Raises:
        ConfigError: `reward_funcs` holds something else.
    """
    offered = getattr(module, "reward_funcs", None)
    if offered is None:
        one = getattr(module, "reward_func", None)
        return [one] if callable(one) and "completions" in _parameters(one) else []
    functions = list(offered) if isinstance(offered, list | tuple) else [offered]
    for function in functions:
        parameters = _parameters(function) if callable(function) else {}
        if "completions" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ConfigError(
                f"reward_funcs of {module.__file__!r} holds {function!r:.80}; wanted functions of "
                "(prompts, completions, **columns). Models are given as --reward.model_name_or_path"
            )
    return functions


class TrlReward:
    """The weighed sum of a file's functions; one that returns None for a completion is left out of its sum.

    Args:
        source: The file, for messages.
        functions: At least one.
        weights: One each, by default 1.
        timeout_s: Deadline of each call.
    """

    def __init__(
        self, source: str, functions: Sequence[Function], weights: Sequence[float] | None, *, timeout_s: float
    ) -> None:
        if weights is not None and len(weights) != len(functions):
            raise ConfigError(f"{source!r} has {len(functions)} reward_funcs and {len(weights)} reward_weights")
        self._source = source
        self._functions = _named(functions)
        for name, function in self._functions.items():
            _check_parameters(source, name, function)
        self._weights = [1.0] * len(functions) if weights is None else [float(weight) for weight in weights]
        self._calls = UserCalls(timeout_s)

    async def score(self, tasks: Sequence[Task], answers: Sequence[str]) -> list[Reward]:
        """Return one reward for each task and answer.

        Raises:
            RewardError: A function raised, returned no reward, or all returned None for a completion.
            DeadlineError: One gave no answer in time.
        """
        metrics: dict[str, list[float]] = {}
        shown = _shown(tasks, answers)
        columns = await asyncio.gather(
            *(self._one(name, function, shown, len(tasks), metrics) for name, function in self._functions.items())
        )
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        return [self._summed(row, place, means) for place, row in enumerate(zip(*columns, strict=True))]

    async def _one(
        self, name: str, function: Function, shown: dict[str, Any], num: int, metrics: dict[str, list[float]]
    ) -> list[float | None]:
        what = f"{name} of {self._source!r}"

        def log_metric(metric: str, value: float) -> None:
            metrics.setdefault(metric, []).append(float(value))

        returned = await self._calls.call(
            function, what=what, **_accepted(function, {**shown, "log_metric": log_metric})
        )
        if not isinstance(returned, list | tuple):
            return list[float | None](_numbers(returned, num, what))
        if len(returned) != num:
            raise RewardError(f"{what} returned {len(returned)} rewards for {num} completions; wanted one for each")
        known = [place for place, reward in enumerate(returned) if not _is_none(reward)]
        rewards: list[float | None] = [None] * num
        for place, reward in zip(known, _numbers([returned[place] for place in known], len(known), what), strict=True):
            rewards[place] = reward
        return rewards

    def _summed(self, rewards: Sequence[float | None], place: int, metrics: dict[str, float]) -> Reward:
        weighed = [w * r for w, r in zip(self._weights, rewards, strict=True) if r is not None]
        if not weighed:
            raise RewardError(f"{self._source!r} gave no reward for completion {place}: every function returned None")
        total = math.fsum(weighed)
        several = dict(zip(self._functions, rewards, strict=True)) if len(rewards) > 1 else {}
        logs = {f"rewards/{name}": reward for name, reward in several.items() if reward is not None}
        return Reward(total, total, {**logs, **metrics})


def _numbers(returned: Any, num: int, what: str) -> list[float]:
    """Return numbers as `parse_rewards` reads them."""
    return [reward.reward for reward in parse_rewards(returned, num, what)]


def _shown(tasks: Sequence[Task], answers: Sequence[str]) -> dict[str, Any]:
    """Return what functions are called with: columns that all tasks have, and prompts and completions in one form."""
    names = set.intersection(*(set(task.data) for task in tasks)) - {"prompt", "completion", "completion_ids"}
    columns: dict[str, Any] = {name: [task.data[name] for task in tasks] for name in sorted(names)}
    pairs = list(zip(tasks, answers, strict=True))
    columns["prompts"] = [task.prompt if isinstance(task.prompt, str) else list(task.prompt or []) for task in tasks]
    columns["completions"] = [
        answer if isinstance(task.prompt, str) else [Message(role="assistant", content=answer)]
        for task, answer in pairs
    ]
    return columns


def _accepted(function: Function, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function takes; TRL wants all of them taken, which costs nothing to leave out."""
    parameters = _parameters(function)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}


def _check_parameters(source: str, name: str, function: Function) -> None:
    for parameter in _parameters(function).values():
        if parameter.name in _NOT_KNOWN and parameter.default is parameter.empty:
            raise ConfigError(
                f"{name} of {source!r} wants {parameter.name}, which is not known here; give it a default"
            )


def _named(functions: Sequence[Function]) -> dict[str, Function]:
    """Return functions by name, those of one name told apart by number."""
    named: dict[str, Function] = {}
    for number, function in enumerate(functions):
        inner = getattr(function, "func", function)  # of a functools.partial
        name = str(getattr(inner, "__name__", type(inner).__name__))
        named[f"{name}_{number}" if name in named else name] = function
    return named


def _parameters(function: Function) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}  # built in, or made by C: it tells nothing


def _is_none(reward: object) -> bool:
    return reward is None or (isinstance(reward, float) and math.isnan(reward))
