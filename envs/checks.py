"""Checks any environment against the contract: what is wrong, and how to mend it."""

from collections.abc import Sequence
from dataclasses import replace

import cloudpickle  # what Ray sends things with

from ..errors import ConfigError
from .checks_driver import wrong_methods
from .checks_episode import check_episodes
from .checks_fork import check_forks
from .factory import EnvFactory
from .mixed_tasks import member_of, own_task
from .problem import Problem
from .task import Split, Task

NUM_TASKS = 64


def check_env(
    factory: EnvFactory,
    tasks: Sequence[Task] | None = None,
    *,
    max_turns: int = 64,
    timeout_s: float = 60.0,
    seed: int = 0,
) -> list[Problem]:
    """Play a few episodes and return every problem found.

    Args:
        factory: Makes the environment.
        tasks: Tasks to play where the environment has none of its own.
        max_turns: An episode must end within so many turns, whatever the model says.
        timeout_s: Deadline of one reset, step or close.
        seed: For the actions.

    Raises:
        ConfigError: The environment refuses its arguments, or needs tasks to be given.
    """
    problems = _check_factory(factory)
    if factory.members:
        return problems + _check_members(factory, tasks, max_turns, timeout_s, seed)
    if any(problem.severity == "error" for problem in problems):
        return problems
    own_tasks: Sequence[Task] = tasks or ()
    if tasks is None:
        own_tasks, found = _check_tasks(factory)
        problems += found
    if own_tasks:
        problems += check_episodes(factory, own_tasks, max_turns, timeout_s, seed)
        # What goes another way each time cannot be compared with its twin.
        if not any(problem.severity == "error" or problem.check == "seeding" for problem in problems):
            problems += check_forks(factory, own_tasks, max_turns, timeout_s, seed)
    return list(dict.fromkeys(problems))


def _check_members(
    factory: EnvFactory, given: Sequence[Task] | None, max_turns: int, timeout_s: float, seed: int
) -> list[Problem]:
    """Check how a mixture's tasks are, and each member by itself with some that are for it."""
    mixed, problems = (
        _check_tasks(factory) if given is None else (factory.tasks("train", 0, given)[:NUM_TASKS], list[Problem]())
    )
    for name, member in factory.members.items():
        tasks = [own_task(task) for task in mixed if member_of(task.id) == name]
        found = check_env(member, tasks, max_turns=max_turns, timeout_s=timeout_s, seed=seed) if tasks else []
        problems += [replace(problem, what=f"{name}: {problem.what}") for problem in found]
    return list(dict.fromkeys(problems))


def _check_factory(factory: EnvFactory) -> list[Problem]:
    problems = [Problem("awaiting", "error", what, how) for what, how in wrong_methods(factory.env_class)]
    try:
        cloudpickle.loads(cloudpickle.dumps(factory))
    except Exception as error:
        problems.append(
            Problem(
                "pickle",
                "error",
                f"the factory cannot be pickled: {error}",
                "pass numbers and text as arguments, and open files, locks and clients in the constructor",
            )
        )
    try:
        factory()
    except ConfigError:
        raise  # the arguments are wrong, not the environment
    except Exception as error:
        problems.append(
            Problem(
                "constructor",
                "error",
                f"making it raised {type(error).__name__}: {error}",
                "give every argument a default that works, or say which are needed",
            )
        )
    return problems


def _check_tasks(factory: EnvFactory) -> tuple[Sequence[Task], list[Problem]]:
    problems: list[Problem] = []
    sets: dict[Split, list[Task]] = {}
    splits: tuple[Split, Split] = ("train", "eval")
    for split in splits:
        try:
            tasks, again = factory.tasks(split, 0), factory.tasks(split, 0)
            sets[split] = [tasks[index] for index in range(min(len(tasks), NUM_TASKS))]
            repeated = [again[index] for index in range(min(len(again), NUM_TASKS))]
            problems += _problems_of_tasks(split, sets[split], repeated)
        except ConfigError as error:
            if split == "train" or not factory.members:
                raise  # the arguments are wrong, not the environment
            sets[split] = []
            problems.append(Problem("tasks", "warning", str(error), "do so before a run asks for evaluation"))
        except Exception as error:
            problems.append(
                Problem(
                    "tasks",
                    "error",
                    f"tasks({split!r}, 0) raised {type(error).__name__}: {error}",
                    "return a sequence of Task, or leave the method out to get tasks that are seeds",
                )
            )
            return [], problems
    if any(problem.severity == "error" for problem in problems):
        return [], problems
    shared = {task.id for task in sets["train"]} & {task.id for task in sets["eval"]}
    seen = {repr(task.prompt) for task in sets["train"] if task.prompt is not None}
    leaked = [task.id for task in sets["eval"] if task.id in shared or repr(task.prompt) in seen]
    if leaked:
        problems.append(
            Problem(
                "splits",
                "error",
                f"{len(leaked)} of {len(sets['eval'])} evaluation tasks are train tasks too, such as {leaked[0]!r}",
                "split by the content, for example by a hash of the prompt, and begin ids with the split",
            )
        )
    return sets["train"], problems


def _problems_of_tasks(split: Split, tasks: list[Task], again: list[Task]) -> list[Problem]:
    where = f"tasks({split!r}, 0)"
    how = "return Task(id=..., prompt=..., label=..., seed=...) objects"
    if not tasks:
        return [Problem("tasks", "error", f"{where} is empty", "return at least one task for each split")]
    wrong = [task for task in tasks if not isinstance(task, Task)]
    if wrong:
        return [Problem("tasks", "error", f"{where} holds a {type(wrong[0]).__name__}", how)]
    problems = []
    if len({task.id for task in tasks}) < len(tasks):
        problems.append(
            Problem("tasks", "error", f"{where} holds two tasks of one id", "make ids unique: groups go by them")
        )
    if [task.id for task in tasks] != [task.id for task in again]:
        problems.append(
            Problem(
                "tasks",
                "error",
                f"{where} gives other tasks when called again",
                "draw them from the seed alone; a resumed run goes by position",
            )
        )
    try:
        cloudpickle.loads(cloudpickle.dumps(tasks))
    except Exception as error:
        problems.append(
            Problem("pickle", "error", f"a task of {where} cannot be pickled: {error}", "put plain data into tasks")
        )
    return problems
