"""Environments to be mixed; made by this file's path."""

from turngym.envs.base import Env
from turngym.envs.task import Task

num_begun = 0


class Steady(Env):
    """One turn; "A" is worth 1. It knows its tasks by their own ids."""

    def tasks(self, split, seed):
        return [Task(f"steady {split} {number}") for number in range(8)]

    def reset(self, *, seed=None, options=None):
        assert options["task"].id.startswith("steady ")
        return options["task"].id, {}

    def step(self, action):
        return "", float(str(action).startswith("A")), True, False, {}


class Broken(Env):
    """As the other, until its service is gone.

    Args:
        num_good: Episodes that it begins before, of the whole process.
    """

    def __init__(self, num_good: int = 4) -> None:
        self.num_good = num_good

    def tasks(self, split, seed):
        return [Task(f"broken {split} {number}") for number in range(4)]

    def reset(self, *, seed=None, options=None):
        if " train " in options["task"].id:
            global num_begun
            num_begun += 1
            if num_begun > self.num_good:
                raise OSError("it broke")
        return "go", {}

    def step(self, action):
        return "", 0.5, True, False, {}


class Empty(Env):
    """It has no tasks."""

    def tasks(self, split, seed):
        return []
