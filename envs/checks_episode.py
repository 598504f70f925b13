"""The conformance checks of what `reset` and `step` return, and of whole episodes."""

import math
from collections.abc import Sequence
from typing import Any

from .base import AsyncEnv, Env
from .checks_driver import Driver, Episode
from .factory import EnvFactory
from .messages import as_messages
from .problem import Problem
from .task import Task

NUM_EPISODES = 4
MAX_BLOCK_S = 0.5
_HOW_RESET = "let reset work for each of the environment's own tasks"
_HOW_STEP = (
    "answer any text of the model, empty or malformed, with an observation; raise only when the environment "
    "itself is broken"
)


def check_episodes(
    factory: EnvFactory, tasks: Sequence[Task], max_turns: int, timeout_s: float, seed: int
) -> list[Problem]:
    """Play episodes on fresh environments and again on a used one; the same task must go the same way."""
    problems: list[Problem] = []
    courses: list[list[str]] = []
    for index, task in enumerate(tasks[:NUM_EPISODES]):
        first, second = Driver(factory(), max_turns, timeout_s), Driver(factory(), max_turns, timeout_s)
        try:
            fresh = first.play(task, style=index, seed=seed)
            problems += _problems_of_episode(first.env, fresh, max_turns) + _problems_of_blocking(first)
            if not any(problem.severity == "error" for problem in problems):
                other = second.play(task, style=index, seed=seed)
                used = first.play(task, style=index, seed=seed)
                problems += _problems_of_episode(first.env, used, max_turns)
                problems += _problems_of_repeats(fresh, other, used)
                courses.append(second.play(task, style=2, seed=seed).transcript)
        finally:
            problems += [Problem("close", "error", what, how) for what, how in first.close() + second.close()]
        if any(problem.severity == "error" for problem in problems):
            return problems  # what follows would repeat it
    if len(courses) > 1 and all(course == courses[0] for course in courses):
        problems.append(
            Problem(
                "tasks_differ",
                "warning",
                f"{len(courses)} different tasks go the same way when answered the same",
                "use options['task'] in reset (its prompt, or its seed by self._draw(seed, options))",
            )
        )
    return problems


def _problems_of_blocking(driver: Driver) -> list[Problem]:
    if driver.longest_block_s <= MAX_BLOCK_S:
        return []
    return [
        Problem(
            "blocking",
            "error",
            f"the event loop stood still for {driver.longest_block_s:.1f} s, and every other episode with it",
            "await instead of blocking (asyncio.to_thread for what cannot), or inherit turngym.Env",
        )
    ]


def _problems_of_episode(env: Env | AsyncEnv, episode: Episode, max_turns: int) -> list[Problem]:
    problems = []
    for where, result in episode.results:
        problems += _problems_of_result(env, where, result)
    if episode.error is not None:
        what = f"{episode.where} raised {type(episode.error).__name__}: {episode.error}"
        problems.append(Problem("raises", "error", what, _HOW_RESET if episode.where == "reset" else _HOW_STEP))
    if not problems and not episode.has_ended:
        problems.append(
            Problem(
                "termination",
                "error",
                f"no episode end within {max_turns} turns",
                "count turns in step and return truncated=True at your limit",
            )
        )
    return problems


def _problems_of_result(env: Env | AsyncEnv, where: str, result: Any) -> list[Problem]:
    wanted = "(observation, info)" if where == "reset" else "(observation, reward, terminated, truncated, info)"
    length = 2 if where == "reset" else 5
    if not isinstance(result, tuple) or len(result) != length:
        got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        return [Problem(f"{where}_result", "error", f"{where} returned {got}", f"return {wanted}")]
    problems = _problems_of_observation(env, where, result[0])
    if not isinstance(result[-1], dict):
        problems.append(
            Problem("info", "error", f"{where} returned info of type {type(result[-1]).__name__}", "return a dict")
        )
    if where == "step":
        problems += _problems_of_outcome(result)
    return problems


def _problems_of_observation(env: Env | AsyncEnv, where: str, observation: Any) -> list[Problem]:
    try:
        as_messages(observation, where)
    except Exception as error:
        return [Problem("observation", "error", str(error), "return text, chat messages, or RawText")]
    if not env.observation_space.contains(observation):
        return [
            Problem(
                "space",
                "error",
                f"{where} returned an observation that its observation_space does not contain",
                "leave observation_space as it is inherited, or make it contain all you return",
            )
        ]
    return []


def _problems_of_outcome(result: tuple[Any, ...]) -> list[Problem]:
    _, reward, terminated, truncated, info = result
    problems = []
    if not _is_finite(reward):
        problems.append(
            Problem(
                "reward",
                "error",
                f"step returned the reward {reward!r}",
                "return a finite number; raise where no reward can be given: the attempt is then left out",
            )
        )
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if type(value).__name__ not in ("bool", "bool_"):  # NumPy's counts
            problems.append(
                Problem("bools", "error", f"step returned {name}={value!r}", f"return {name} as True or False")
            )
    logs = info.get("extra_logs", {}) if isinstance(info, dict) else {}
    score = info.get("score") if isinstance(info, dict) else None
    if score is not None and not _is_finite(score):
        problems.append(Problem("score", "error", f"info['score'] is {score!r}", "give a number from 0 to 1, or none"))
    elif score is not None and not 0 <= float(score) <= 1:
        how = "filters expect 0 to 1; give a scaled score, or filter by the range you use"
        problems.append(Problem("score", "warning", f"info['score'] is {score!r}", how))
    if not isinstance(logs, dict) or not all(_is_finite(value) for value in logs.values()):
        problems.append(Problem("extra_logs", "error", f"info['extra_logs'] is {logs!r}", "give a dict of numbers"))
    return problems


def _problems_of_repeats(fresh: Episode, other: Episode, used: Episode) -> list[Problem]:
    """Compare one task on a fresh environment, on another fresh one, and on the first one used again."""
    if fresh.opening != other.opening:
        return [
            Problem(
                "seeding",
                "error",
                "the same task begins with different observations",
                "draw everything from the task: self._draw(seed, options), then self.np_random and nothing else",
            )
        ]
    if fresh.transcript != other.transcript:
        return [
            Problem(
                "seeding",
                "warning",
                "the same task and actions lead to different steps",
                "fine for a live tool or service; else draw from self.np_random only",
            )
        ]
    if fresh.transcript != used.transcript:
        return [
            Problem(
                "state",
                "error",
                "a second episode goes another way than on a fresh environment: reset leaves state behind",
                "set every attribute that step changes anew in reset",
            )
        ]
    return []


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
