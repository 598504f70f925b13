"""`gem/NAME`: the environments of GEM, a "General Experience Maker" (package `gem-llm`).

Games are seeds; of what asks questions some are held out by their text, so that none of these is ever trained on.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import ConfigError, EnvError, UnknownNameError
from ...registry import nearest
from ..base import Env, StepResult
from ..builtin.reasoning_gym import split_of
from ..registration import Collection
from ..task import LazyTasks, Split, Task, seeded_tasks
from .extras import import_extra
from .private_random import PrivateRandom

SEEDS_PER_TASK = 256  # a task looks for a question of its split among so many
_GAME = "game:"


class Gem(Env):
    """One of GEM's environments, as it is without wrappers: the conversation holds what was said before.

    Args:
        env: Its id, such as `game:GuessTheNumber-v0-easy`.
        **options: Its own, such as `max_turns`.
    """

    def __init__(self, env: str, **options: Any) -> None:
        known = _registry()
        if env not in known:
            raise UnknownNameError(f"unknown environment 'gem/{env}'.{nearest(env, known)}")
        _check_options(env, known[env].entry_point, options)
        self._name = env
        self._random = PrivateRandom()
        try:
            with self._random.in_place():
                self._env = import_extra("gem", "gem", "gem").make(env, **options)
        except Exception as error:  # no data set, no tool, a wrong option
            raise ConfigError(f"gem/{env} cannot be made: {type(error).__name__}: {error}") from error
        self._is_running = False

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return 100,000 tasks: seeds of a game, or questions whose text falls into the split."""
        if self._name.startswith(_GAME):
            return seeded_tasks(f"gem/{self._name}", split, seed)
        return LazyTasks(100_000, lambda index: self._question(split, seed, index), is_endless=True)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode with the task's seed."""
        task = self._draw(seed, options)
        if task.seed is None:
            raise EnvError(f"task {task.id!r} has no seed; gem/{self._name} takes its own tasks only")
        self._is_running = True
        return self._first(task.seed), {}

    def step(self, action: str) -> StepResult:
        """Pass the action on."""
        if not self._is_running:
            raise EnvError(f"gem/{self._name}: step was called with no episode running; call reset first")
        if self._name.startswith(_GAME):
            with self._random.in_place():
                result = self._env.step(str(action))
        else:  # what runs programs or graders takes long, and draws nothing
            result = self._env.step(str(action))
        observation, reward, terminated, truncated, info = result
        self._is_running = not (terminated or truncated)
        # What asks once says that it is both; the question is answered, so that no limit was met.
        truncated = bool(truncated) and not terminated
        shown = (
            ""
            if observation == _terminal()
            else observation
            if not self._is_running
            else _with_suffix(observation, info)
        )
        return shown, float(reward), bool(terminated), truncated, {}

    def close(self) -> None:
        """Close the environment behind, if it has something to close."""
        if (close := getattr(self._env, "close", None)) is not None:
            close()

    def _first(self, seed: int) -> str:
        with self._random.in_place():
            return _with_suffix(*self._env.reset(seed=seed))

    def _question(self, split: Split, seed: int, index: int) -> Task:
        cell = (seed * 1_000_003 + index) % ((1 << 31) // SEEDS_PER_TASK)
        for task_seed in range(cell * SEEDS_PER_TASK, (cell + 1) * SEEDS_PER_TASK):
            if split_of(self._first(task_seed)) == split:
                return Task(id=f"gem/{self._name}/{split}/{task_seed}", seed=task_seed)
        raise ConfigError(f"gem/{self._name} asks so few different questions that none falls into the {split} split")


def _check_options(name: str, target: Any, options: dict[str, Any]) -> None:
    """Refuse options that a class does not know; many swallow them, as `**_`."""
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        target = getattr(import_extra(module, "gem", "gem"), attribute)
    parameters = inspect.signature(target).parameters
    if any(p.kind is p.VAR_KEYWORD and p.name != "_" for p in parameters.values()):
        return  # passed on, and checked there
    for option in options.keys() - parameters.keys():
        raise ConfigError(f"gem/{name} takes no argument {option!r}.{nearest(option, parameters.keys() - {'_'})}")


def _with_suffix(observation: str, info: dict[str, Any]) -> str:
    """Return what the model is to answer: what GEM's own wrapper shows, without what was said before."""
    shown = f"{info.get('prefix', '')}{observation}"
    return f"{shown.rstrip()}\n{info['suffix']}" if info.get("suffix") else shown


def _terminal() -> str:
    return str(import_extra("gem.utils.constants", "gem", "gem").TERMINAL_STATE)


def _registry() -> dict[str, Any]:
    import_extra("gem.envs", "gem", "gem")  # its import fills the table
    return dict(import_extra("gem.envs.registration", "gem", "gem").ENV_REGISTRY)


def _names() -> Iterable[str]:
    return sorted(_registry())


COLLECTION = Collection(target=f"{__name__}:Gem", parameter="env", names=_names)
