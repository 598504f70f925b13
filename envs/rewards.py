"""Finds the reward function behind `--reward.remote_url`, and runs a user's file off the event loop."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import ConfigError, RewardError
from ..registry import nearest
from .openrlhf.stand_in import load_file
from .reward import Reward, RewardFunction, parse_rewards
from .task import Task
from .trl_rewards import TrlReward, trl_functions
from .user_calls import UserCalls

AnyReward = RewardFunction | TrlReward


@cache
def load_reward(remote_url: str, *, timeout_s: float = 180.0) -> AnyReward:
    """Return the reward function behind `--reward.remote_url`, one per process; `reward_of` calls either kind.

    Raises:
        ConfigError: It is neither a Python file with `reward_func` (or `reward_funcs`) nor a list of HTTP URLs.
    """
    parts = [part.strip() for part in remote_url.split(",") if part.strip()]
    if parts and all(part.startswith(("http://", "https://")) for part in parts):
        from .reward_http import HttpReward

        return HttpReward(parts, timeout_s=timeout_s)
    if len(parts) != 1 or not parts[0].endswith(".py"):
        raise ConfigError(f"a reward function is one .py file or http(s) URLs, got {remote_url!r}")
    source = str(Path(parts[0]).expanduser().resolve())
    module = load_file(source)
    if functions := trl_functions(module):
        return TrlReward(source, functions, getattr(module, "reward_weights", None), timeout_s=timeout_s)
    return FileReward(source, timeout_s=timeout_s)


async def reward_of(function: AnyReward, task: Task, answer: str, prompt: str, query: str) -> Reward:
    """Score one finished text, whichever contract the function has.

    Args:
        function: As `load_reward` returns it.
        task: What was to be done.
        answer: The model's, without special tokens.
        prompt: All that stands before the answer, special tokens kept.
        query: The whole text, special tokens kept.

    Raises:
        RewardError: There is not one reward.
    """
    if isinstance(function, TrlReward):
        return (await function.score([task], [answer]))[0]
    # OpenRLHF passes "" where no label column is named; files written for it rely on that.
    rewards = await function([query], [prompt], ["" if task.label is None else task.label])
    if len(rewards) != 1:
        raise RewardError(f"wanted one reward for one query, got {len(rewards)}")
    return rewards[0]


class FileReward:
    """`reward_func(queries, prompts, labels)` of a Python file, run off the caller's event loop."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._source = str(Path(path).expanduser().resolve())
        self._function = _reward_func(load_file(path), self._source)
        self._calls = UserCalls(timeout_s)

    async def __call__(self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> list[Reward]:
        """Call the function and check what it returns."""
        arguments = (list(queries), list(prompts), list(labels))
        returned = await self._calls.call(self._function, *arguments, what=f"reward_func of {self._source!r}")
        return parse_rewards(returned, len(queries), self._source)


def _reward_func(module: ModuleType, source: str) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(module, "reward_func", None)
    if not callable(function):
        suggestion = nearest("reward_func", [n for n, v in vars(module).items() if inspect.isfunction(v)])
        raise ConfigError(f"{source!r} defines no reward_func(queries, prompts, labels).{suggestion}")
    return function
