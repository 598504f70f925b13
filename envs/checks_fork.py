"""The conformance checks of forks: a twin goes on as its parent would have, and the parent as if there were no twin."""

from collections.abc import Sequence

from ..errors import EnvError, ProgramError
from .base import AsyncEnv, Env
from .checks_driver import Driver
from .factory import EnvFactory
from .problem import Problem
from .spaces import TextSpace
from .task import Task

NUM_TASKS = 2
FORKED_AFTER = (0, 1)
"""Turns that are played before the fork."""

_HOW_ALONE = (
    "copy in fork all that step changes: lists, files, processes, self.np_random; share only what never changes"
)
_HOW_FORK = "return another environment of the same kind, or let can_fork be False in this state"


def check_forks(
    factory: EnvFactory, tasks: Sequence[Task], max_turns: int, timeout_s: float, seed: int
) -> list[Problem]:
    """Fork episodes after the reset and after a turn, as far as the environment says that it can."""
    if factory.env_class.can_fork in (Env.can_fork, AsyncEnv.can_fork):
        return []
    for number, task in enumerate(tasks[:NUM_TASKS]):
        space = TextSpace(seed=seed + number)
        texts, others = ([space.sample() for _ in range(max_turns)] for _ in range(2))
        for num_turns in FORKED_AFTER:
            alone, parent = (Driver(factory(), max_turns, timeout_s) for _ in range(2))
            problems: list[Problem] = []
            try:
                if _begin(alone, task, texts[:num_turns]) and _begin(parent, task, texts[:num_turns]):
                    wanted = alone.go_on(texts[num_turns:]).transcript
                    problems += _compare(parent, texts[num_turns:], others[num_turns:], wanted, num_turns)
            finally:
                problems += [Problem("close", "error", what, how) for what, how in alone.close() + parent.close()]
            if problems:
                return problems  # what follows would repeat it
    return []


def _begin(driver: Driver, task: Task, texts: list[str]) -> bool:
    """Play the first turns; return whether the episode goes on and can be forked."""
    return driver.begin(task).error is None and not driver.go_on(texts).has_ended and driver.env.can_fork


def _compare(parent: Driver, texts: list[str], others: list[str], wanted: list[str], num_turns: int) -> list[Problem]:
    """Compare a twin, and its parent after it, with an environment that was never forked and did what is wanted."""
    where = f"after turn {num_turns - 1}" if num_turns else "after reset"
    try:
        _twin(parent, others)
        if (found := _twin(parent, texts)) != wanted:
            what = f"a twin that was forked {where} answers otherwise than its parent would: {_apart(wanted, found)}"
            return [Problem("fork", "error", what, _HOW_ALONE)]
    except ProgramError:
        return []  # the answers' own doing
    except Exception as error:
        what = f"can_fork is True {where}, and forking raised {type(error).__name__}: {error}"
        return [Problem("fork", "error", what, _HOW_FORK)]
    if (found := parent.go_on(texts).transcript) != wanted:
        what = f"an environment goes another way once twins that were forked of it {where} have played and been closed"
        return [Problem("fork", "error", f"{what}: {_apart(wanted, found)}", _HOW_ALONE)]
    return []


def _twin(parent: Driver, texts: list[str]) -> list[str]:
    """Fork, play and close a twin; return what it answered."""
    twin = parent.fork()
    if twin.env is parent.env:
        raise EnvError("fork returned the environment itself")
    answers = twin.go_on(texts).transcript
    if wrong := twin.close():
        raise EnvError(wrong[0][0])
    return answers


def _apart(wanted: list[str], found: list[str]) -> str:
    place = next(
        (i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b), min(len(wanted), len(found))
    )
    one, other = (steps[place][:200] if place < len(steps) else "nothing" for steps in (wanted, found))
    return f"step {place + 1} of the rest gave {other} and not {one}"
