"""A synchronous face for asynchronous environments, so that a plain Gymnasium loop works for every one."""

from collections.abc import Sequence
from typing import Any

import gymnasium

from .base import AsyncEnv, Env, StepResult
from .loop_thread import LoopThread
from .messages import Observation
from .task import Split, Task


class SyncFacade(gymnasium.Env[Observation, str]):
    """Runs an `AsyncEnv` on an event loop of its own, one call at a time, each with a deadline.

    Attributes:
        env: The asynchronous environment.
    """

    def __init__(self, env: AsyncEnv, timeout_s: float = 600.0) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._timeout_s = timeout_s
        self._name = type(env).__name__
        self._loop = LoopThread(f"turngym-{self._name}")
        self._is_closed = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; without a seed, the next of the seeds that follow from the last one given."""
        super().reset(seed=seed)
        seed = int(self.np_random.integers(1 << 30)) if seed is None else seed
        coroutine = self.env.reset(seed=seed, options=options)
        return self._loop.run(coroutine, timeout_s=self._timeout_s, what=f"reset of {self._name}")

    def step(self, action: str) -> StepResult:
        """Answer the action."""
        return self._loop.run(self.env.step(action), timeout_s=self._timeout_s, what=f"step of {self._name}")

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the environment's own tasks."""
        return self.env.tasks(split, seed)

    def close(self) -> None:
        """Close the environment once, and its event loop."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._loop.run(self.env.close(), timeout_s=self._timeout_s, what=f"close of {self._name}")
        finally:
            self._loop.close()


def synchronous(env: Env | AsyncEnv) -> gymnasium.Env[Any, str]:
    """Return `env` itself if it is synchronous, else its facade."""
    return SyncFacade(env) if isinstance(env, AsyncEnv) else env
