"""Small programming tasks drawn from a seed: a chain of steps over a list of numbers or over words, with tests.

A hash of the wording says which split a task belongs to, so that no evaluation task is ever trained on.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError
from ..task import Split, Task
from .reasoning_gym import split_of

NUM_PUBLIC = 3
NUM_HIDDEN = 12
_SEEDS_PER_TASK = 256
_NUM_CELLS = 1 << 24
_WORDS = (
    "a an ant ape arc bee bird cat cow deer dog eel elk emu fox gnu hen ibis jay kite lark mole newt owl pig ram yak"
)


@dataclass(frozen=True)
class Step:
    """One step: what is said of it, with {k} for its parameter, and what it does."""

    text: str
    apply: Callable[[Any, int], Any]  # Any: a list, and after the last step whatever is returned
    parameters: Sequence[int] = (0,)


_KEEP_NUMBERS = (
    Step("keep only the even ones", lambda v, k: [x for x in v if x % 2 == 0]),
    Step("keep only the odd ones", lambda v, k: [x for x in v if x % 2]),
    Step("keep only those greater than {k}", lambda v, k: [x for x in v if x > k], range(-9, 6)),
    Step("keep only those less than {k}", lambda v, k: [x for x in v if x < k], range(-5, 10)),
    Step("leave out those divisible by {k}", lambda v, k: [x for x in v if x % k], range(2, 8)),
    Step("keep only the first {k} (or all, if there are fewer)", lambda v, k: v[:k], range(2, 6)),
    Step("leave out the first {k}", lambda v, k: v[k:], range(1, 4)),
    Step("leave out repetitions, keeping the first of each", lambda v, k: list(dict.fromkeys(v))),
)
_CHANGE_NUMBERS = (
    Step("add {k} to each", lambda v, k: [x + k for x in v], range(1, 20)),
    Step("multiply each by {k}", lambda v, k: [x * k for x in v], range(2, 10)),
    Step("square each", lambda v, k: [x * x for x in v]),
    Step("take the absolute value of each", lambda v, k: [abs(x) for x in v]),
    Step("subtract each from {k}", lambda v, k: [k - x for x in v], range(0, 20)),
)
_RETURN_NUMBERS = (
    Step("return them as a list", lambda v, k: v),
    Step("return them as a list in ascending order", lambda v, k: sorted(v)),
    Step("return them as a list in descending order", lambda v, k: sorted(v, reverse=True)),
    Step("return them as a list in reverse order", lambda v, k: v[::-1]),
    Step("return their sum (0 if none is left)", lambda v, k: sum(v)),
    Step("return the largest (None if none is left)", lambda v, k: max(v, default=None)),
    Step("return the smallest (None if none is left)", lambda v, k: min(v, default=None)),
)
_KEEP_WORDS = (
    Step("keep only those of {k} letters or more", lambda v, k: [w for w in v if len(w) >= k], range(2, 4)),
    Step("keep only those of fewer than {k} letters", lambda v, k: [w for w in v if len(w) < k], range(3, 5)),
    Step("keep only those that begin with a vowel", lambda v, k: [w for w in v if w[0] in "aeiou"]),
    Step("keep only those that begin with a consonant", lambda v, k: [w for w in v if w[0] not in "aeiou"]),
    Step("leave out the first {k}", lambda v, k: v[k:], range(1, 3)),
    Step("keep only the first {k} (or all, if there are fewer)", lambda v, k: v[:k], range(2, 6)),
)
_CHANGE_WORDS = (
    Step("reverse the letters of each", lambda v, k: [w[::-1] for w in v]),
    Step("write each in capitals", lambda v, k: [w.upper() for w in v]),
    Step("write each {k} times over, with nothing between", lambda v, k: [w * k for w in v], range(2, 4)),
    Step("put an 'x' in front of each", lambda v, k: ["x" + w for w in v]),
    Step("leave out the last letter of each", lambda v, k: [w[:-1] for w in v]),
)
_RETURN_WORDS = (
    Step("return them as a list", lambda v, k: v),
    Step("return them as one string, joined by '-'", lambda v, k: "-".join(v)),
    Step("return them as one string, joined by single spaces", lambda v, k: " ".join(v)),
    Step("return the number of letters that they have together", lambda v, k: sum(map(len, v))),
    Step("return them as a list in alphabetical order", lambda v, k: sorted(v)),
)


def puzzle_task(split: Split, seed: int, index: int) -> Task:
    """Return a task of a split, with its hidden tests as the label and its public ones among the data."""
    cell = (seed * 1_000_003 + index) % _NUM_CELLS
    for task_seed in range(cell * _SEEDS_PER_TASK, (cell + 1) * _SEEDS_PER_TASK):
        task = puzzle(task_seed, split)
        if split_of(str(task.prompt)) == split:
            return task
    raise ConfigError(f"no puzzle of the {split} split was found at seed {seed}, index {index}; take another seed")


def puzzle(seed: int, split: Split) -> Task:
    """Return the task that a seed draws."""
    rng = random.Random(seed)
    is_of_numbers = rng.random() < 0.6
    chain = (
        (_KEEP_NUMBERS, _CHANGE_NUMBERS, _RETURN_NUMBERS)
        if is_of_numbers
        else (_KEEP_WORDS, _CHANGE_WORDS, _RETURN_WORDS)
    )
    steps = [(step, rng.choice(step.parameters)) for step in map(rng.choice, chain)]
    what = "numbers), which takes a list of whole numbers" if is_of_numbers else "words), which takes a list of words"
    said = "; then ".join(step.text.format(k=k) for step, k in steps)
    prompt = f"Write a Python function solve({what}. It is to {said}."
    draw = _numbers if is_of_numbers else _words
    calls = [_call(steps, draw(rng)) for _ in range(NUM_PUBLIC + NUM_HIDDEN - 1)] + [_call(steps, [])]
    tests = {"entry_point": "solve", "compare": {"exact_types": True}}
    return Task(
        id=f"puzzle/{split}/{seed}",
        prompt=prompt,
        label={**tests, "calls": calls[NUM_PUBLIC:]},
        seed=seed,
        data={"public_tests": {**tests, "calls": calls[:NUM_PUBLIC]}},
    )


def _call(steps: list[tuple[Step, int]], given: list[Any]) -> dict[str, Any]:
    value: Any = list(given)
    for step, parameter in steps:
        value = step.apply(value, parameter)
    return {"args": [given], "expected": value}


def _numbers(rng: random.Random) -> list[Any]:
    return [rng.randint(-20, 20) for _ in range(rng.randint(3, 9))]


def _words(rng: random.Random) -> list[Any]:
    return [rng.choice(_WORDS.split()) for _ in range(rng.randint(3, 9))]
