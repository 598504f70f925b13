"""Plays episodes of either kind of environment with deadlines, for the conformance checks."""

import asyncio
import inspect
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EnvError
from .base import Action, AsyncEnv, Env
from .daemon_threads import DaemonThreads
from .loop_thread import LoopThread
from .run_delay import run_delay_s
from .spaces import TextSpace
from .task import Task

_BEAT_S = 0.05
_METHODS = ("reset", "step", "close")


def wrong_methods(env_class: type[Env] | type[AsyncEnv]) -> list[tuple[str, str]]:
    """Return what is wrong with the methods' kinds and signatures, each with how to mend it."""
    wants_coroutines = issubclass(env_class, AsyncEnv)
    found = []
    for name in _METHODS:
        method = getattr(env_class, name)
        is_coroutine = inspect.iscoroutinefunction(method)
        if is_coroutine and not wants_coroutines:
            found.append((f"{name} is a coroutine, but the class is a turngym.Env", "inherit turngym.AsyncEnv"))
        elif wants_coroutines and not is_coroutine:
            found.append((f"{name} is no coroutine, but the class is a turngym.AsyncEnv", f"write 'async def {name}'"))
    parameters = inspect.signature(env_class.reset).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    missing = [name for name in ("seed", "options") if name not in parameters and not takes_any]
    if missing:
        found.append(
            (f"reset does not take {' and '.join(missing)}", "write 'def reset(self, *, seed=None, options=None)'")
        )
    return found


@dataclass
class Episode:
    """What happened in one episode.

    Attributes:
        results: What reset and each step returned, in order, with the method's name.
        error: What a call raised; `where` names the call.
        has_ended: The environment ended it.
    """

    results: list[tuple[str, Any]] = field(default_factory=list)
    error: Exception | None = None
    where: str = "reset"
    has_ended: bool = False

    @property
    def opening(self) -> Any:
        """The first observation, or what came in its place."""
        first = self.results[0][1] if self.results else None
        return first[0] if isinstance(first, tuple) and first else first

    @property
    def transcript(self) -> list[str]:
        """All that was returned but the info dicts, as text."""
        return [repr(result[:-1] if isinstance(result, tuple) else result) for _, result in self.results]


class Driver:
    """Holds one environment; every call has a deadline, and a blocked event loop is noticed.

    Args:
        env: What is driven.
        max_turns: Of an episode.
        timeout_s: Deadline of one call.
        beside: The driver of the environment that this one was forked from, whose loop it uses.
    """

    def __init__(self, env: Env | AsyncEnv, max_turns: int, timeout_s: float, beside: "Driver | None" = None) -> None:
        self.env = env
        self.longest_block_s = 0.0
        self._max_turns = max_turns
        self._timeout_s = timeout_s
        self._is_twin = beside is not None
        self._loop: LoopThread = LoopThread("turngym-check") if beside is None else beside._loop

    def play(self, task: Task, style: int, seed: int) -> Episode:
        """Play one episode.

        Args:
            task: What it is about.
            style: 0 answers with echoes, 1 with nothing, others with random text.
            seed: For the random text.
        """
        episode = Episode()
        space = TextSpace(seed=seed + style)
        try:
            result = self._call("reset", seed=task.seed, options={"task": task})
            episode.results.append(("reset", result))
            for turn in range(self._max_turns):
                episode.where = f"step (turn {turn})"
                text = "" if style == 1 else space.sample()
                result = self._call("step", _action(_echo(result) if style == 0 else text))
                episode.results.append(("step", result))
                if not isinstance(result, tuple) or len(result) != 5 or result[2] or result[3]:
                    episode.has_ended = True
                    break
        except Exception as error:
            episode.error = error
        return episode

    def begin(self, task: Task) -> Episode:
        """Reset, and nothing more."""
        episode = Episode()
        try:
            episode.results.append(("reset", self._call("reset", seed=task.seed, options={"task": task})))
        except Exception as error:
            episode.error = error
        return episode

    def go_on(self, texts: Sequence[str]) -> Episode:
        """Play on from where the environment stands, with these answers, until it ends the episode."""
        episode = Episode()
        try:
            for number, text in enumerate(texts):
                episode.where = f"step ({number + 1} of {len(texts)})"
                result = self._call("step", _action(text))
                episode.results.append(("step", result))
                if result[2] or result[3]:
                    episode.has_ended = True
                    break
        except Exception as error:
            episode.error = error
        return episode

    def fork(self) -> "Driver":
        """Fork the environment and return the twin's driver; raises what the environment does."""
        twin = self._call("fork")
        if not isinstance(twin, Env | AsyncEnv):
            raise EnvError(f"fork returned {type(twin).__name__}")
        return Driver(twin, self._max_turns, self._timeout_s, beside=self)

    def close(self) -> list[tuple[str, str]]:
        """Close twice and return what went wrong, with how to mend it."""
        try:
            for time_number in ("first", "second"):
                try:
                    self._call("close")
                except Exception as error:
                    return [
                        (
                            f"close raised {type(error).__name__} the {time_number} time: {error}",
                            "free only what is still held, and forget it: close may follow a failure",
                        )
                    ]
        finally:
            if not self._is_twin:
                self._loop.close()
        return []

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        what = f"{name} of {type(self.env).__name__}"
        method = getattr(self.env, name)
        if isinstance(self.env, AsyncEnv):
            coroutine = self._watched(method(*args, **kwargs))
            return self._loop.run(coroutine, timeout_s=self._timeout_s, what=what)
        # A thread for each call, as in a run: an environment that minds shows it here.
        threads = DaemonThreads(1, "turngym-check-env")
        call = threads.call(lambda: method(*args, **kwargs), timeout_s=self._timeout_s, what=what)
        return self._loop.run(call, timeout_s=2 * self._timeout_s, what=what)

    async def _watched(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        beat = asyncio.create_task(self._beat())
        await asyncio.sleep(0)  # let it begin
        try:
            return await coroutine
        finally:
            await asyncio.sleep(0)
            beat.cancel()

    async def _beat(self) -> None:
        last = time.monotonic() - run_delay_s()
        while True:
            try:
                await asyncio.sleep(_BEAT_S)
            finally:
                now = time.monotonic() - run_delay_s()  # without what a busy machine takes
                self.longest_block_s = max(self.longest_block_s, now - last - _BEAT_S)
                last = now


def _action(text: str) -> Action:
    return Action(text, query=text)


def _echo(result: Any) -> str:
    observation = result[0] if isinstance(result, tuple) and result else ""
    return observation if isinstance(observation, str) else str(observation)
