"""`reasoning_gym/NAME`: the procedural, verifiable task families of the package `reasoning-gym`.

Evaluation questions are held out by their text: a hash of the question says which split it belongs
to, so that none is ever trained on, however small the family is.
"""

import hashlib
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import ConfigError, EnvError, MissingPackageError, UnknownNameError
from ...registry import nearest
from ..arguments import check_arguments
from ..base import Env, StepResult
from ..messages import Message, Observation
from ..registration import Collection
from ..task import LazyTasks, Split, Task

NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?"
# Every fourth question, by hash, is held out.
EVAL_SHARE = 4
# A task looks for a question of its split among this many seeds; chance misses all with (3/4)**256.
SEEDS_PER_TASK = 256
NUM_SEEDS = 1 << 31
# These make or limit all their items at once, so they get a small dataset per seed instead of one vast one.
_ONE_DATASET_PER_SEED = frozenset({"acre", "gsm_symbolic", "list_functions", "word_ladder"})
_NOT_OFFERED = frozenset({"composite"})  # needs a list of dataset objects, not keyword arguments
_OWN_ARGUMENTS = ("system_prompt", "answer_pattern", "exact")
_DRAWS_FROM_GLOBAL_RANDOM = frozenset({"list_functions"})
_GENERATING = threading.Lock()  # global generators may be seeded meanwhile


class ReasoningGym(Env):
    """One question of a reasoning-gym family, one answer, scored by the family itself.

    Args:
        dataset: The family, such as `chain_sum`.
        system_prompt: Shown before the question.
        answer_pattern: Regular expression; its last match in the completion is the answer (group 1, if it
            has groups). By default the last number where the right answer is a number, else the whole text.
        exact: Reward 1 for a full score (0.99 or more) and 0 otherwise, in place of partial scores.
        **config: The family's own options, such as `max_digits`.
    """

    def __init__(
        self,
        dataset: str,
        *,
        system_prompt: str | None = None,
        answer_pattern: str | None = None,
        exact: bool = False,
        **config: Any,
    ) -> None:
        self._name = dataset
        self._entries = _Entries.of(dataset, config)
        self._system_prompt = system_prompt
        self._pattern = _compiled(answer_pattern)
        self._exact = exact
        self._entry: dict[str, Any] | None = None

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return 100,000 tasks; in a small family questions repeat, but never across the splits."""
        return LazyTasks(100_000, lambda index: self._task(split, seed, index), is_endless=True)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Ask the task's question."""
        task = self._draw(seed, options)
        if task.seed is None:
            raise EnvError(f"task {task.id!r} has no seed; reasoning_gym/{self._name} takes its own tasks only")
        self._entry = self._entries.entry(task.seed)
        question = self._entry["question"]
        if self._system_prompt is None:
            return question, {}
        return [Message(role="system", content=self._system_prompt), Message(role="user", content=question)], {}

    def step(self, action: str) -> StepResult:
        """Score the answer."""
        if self._entry is None:
            raise EnvError(f"reasoning_gym/{self._name}: step was called with no episode running; call reset first")
        entry, self._entry = self._entry, None
        answer = self._extract(action, entry["answer"])
        score, crashed = (0.0, False) if answer is None else self._score(answer, entry)
        reward = float(score >= 0.99) if self._exact else score
        info = {"score": reward, "answer": answer, "extra_logs": {"scorer_crashed": float(crashed)}}
        return "", reward, True, False, info

    def _task(self, split: Split, seed: int, index: int) -> Task:
        cell = (seed * 1_000_003 + index) % (NUM_SEEDS // SEEDS_PER_TASK)
        for task_seed in range(cell * SEEDS_PER_TASK, (cell + 1) * SEEDS_PER_TASK):
            entry = self._entries.entry(task_seed)
            if split_of(entry["question"]) == split:
                task_id = f"reasoning_gym/{self._name}/{split}/{task_seed}"
                return Task(id=task_id, prompt=entry["question"], label=entry["answer"], seed=task_seed)
        raise ConfigError(
            f"reasoning_gym/{self._name} with this configuration asks so few different questions that "
            f"none could be found for the {split} split; widen it (more digits, longer texts, ...)"
        )

    def _extract(self, action: str, right_answer: str | None) -> str | None:
        if self._pattern is not None:
            return _last_match(self._pattern, action)
        if right_answer is not None and re.fullmatch(NUMBER, right_answer.strip()):
            return _last_match(re.compile(NUMBER), action)
        return action.strip()

    def _score(self, answer: str, entry: dict[str, Any]) -> tuple[float, bool]:
        """Return the family's score, and whether its scorer choked on the answer.

        Some scorers raise on malformed answers. That is a wrong answer only if they accept the right one.
        """
        score = self._entries.dataset.score_answer
        try:
            return float(score(answer, entry)), False
        except Exception as error:
            if entry["answer"] is None or score(entry["answer"], entry) < 0.99:
                raise EnvError(
                    f"reasoning_gym/{self._name} cannot score {answer!r}: {type(error).__name__}: {error}"
                ) from error
            return 0.0, True


def split_of(question: str) -> Split:
    """Say which split a question belongs to, by its text alone."""
    digest = hashlib.sha256(question.encode()).digest()
    return "eval" if int.from_bytes(digest[:8], "big") % EVAL_SHARE == 0 else "train"


class _Entries:
    """The questions of one configured family, by seed; shared by all environments of the process."""

    def __init__(self, name: str, make: Callable[[int, int], Any]) -> None:
        self._make = make
        self._is_per_seed = name in _ONE_DATASET_PER_SEED
        self._draws_globally = name in _DRAWS_FROM_GLOBAL_RANDOM
        self.dataset = make(0, 1 if self._is_per_seed else NUM_SEEDS)

    @staticmethod
    def of(name: str, config: dict[str, Any]) -> "_Entries":
        """Return the entries of a family, made once per configuration."""
        key = (name, repr(sorted(config.items())))
        if key not in _MADE:
            _MADE[key] = _make_entries(name, config)
        return _MADE[key]

    def entry(self, seed: int) -> dict[str, Any]:
        """Return question, answer and metadata."""
        with _GENERATING:
            if self._draws_globally:
                random.seed(seed)
            dataset = self._make(seed, 1) if self._is_per_seed else self.dataset
            return dataset[0 if self._is_per_seed else seed]  # type: ignore[no-any-return]


_MADE: dict[tuple[str, str], _Entries] = {}


def _make_entries(name: str, config: dict[str, Any]) -> _Entries:
    families = _families()
    if name not in families:
        raise UnknownNameError(f"unknown reasoning_gym family {name!r}.{nearest(name, families)}")
    dataset_class, config_class = families[name]
    check_arguments(
        f"environment 'reasoning_gym/{name}'", config_class, config, hidden=("seed", "size"), also=_OWN_ARGUMENTS
    )

    def make(seed: int, size: int) -> Any:
        try:
            return dataset_class(config_class(**config, seed=seed, size=size))  # it validates them
        except (AssertionError, ValueError) as error:
            raise ConfigError(f"reasoning_gym/{name} refuses {config}: {error}") from error

    return _Entries(name, make)


def _families() -> dict[str, tuple[Any, Any]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a library that it imports
            import reasoning_gym  # noqa: F401  (its import fills the table)
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingPackageError(
            "environments reasoning_gym/... need the package: pip install reasoning-gym"
        ) from error
    return {name: pair for name, pair in DATASETS.items() if name not in _NOT_OFFERED}


def _names() -> Iterable[str]:
    return sorted(_families())


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"answer_pattern {pattern!r} is not a regular expression: {error}") from error


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    return matches[-1].group(1 if pattern.groups else 0)


COLLECTION = Collection(target=f"{__name__}:ReasoningGym", parameter="dataset", names=_names)
