"""`Mixture`: several environments in one run, each task for one of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ConfigError, DataError, EnvError
from ..base import AsyncEnv, Env, StepResult
from ..members import Member, MemberSpec, parse_members
from ..messages import Observation
from ..mixed_tasks import MixedTasks, member_of, mixed, own_task
from ..task import Split, Task


class Mixture(AsyncEnv):
    """Several environments by weight; each task is for one of them, and its id begins with that one's name.

    A run never makes this class but for its tasks: its executors make what each task is for. A plain loop gets one
    that stands for whichever member the task at `reset` is for.

    Args:
        envs: `Math=2,CodeSandbox`, or a list of names or of mappings with the keys `id`, `name`, `weight`, `args`
            and `data` (see docs/environments.md).
    """

    def __init__(self, envs: str | Sequence[MemberSpec]) -> None:
        self._members = {member.name: member for member in parse_members(envs)}
        self._env: Env | AsyncEnv | None = None
        self._name = ""
        self._drawn_from: MixedTasks | None = None  # where a plain loop gives no task

    def tasks(self, split: Split, seed: int, given: Sequence[Task] | None = None) -> MixedTasks:
        """Return the members' tasks, interleaved; those `given` from a dataset are for the one that has none.

        Raises:
            ConfigError: A member brings no tasks, or it is not clear whose those given are.
        """
        parts = {name: _own_tasks(member, split, seed) for name, member in self._members.items()}
        wanting = [name for name, tasks in parts.items() if tasks is None]
        if given is not None:
            if len(wanting) != 1:
                raise ConfigError(_whose(split, wanting))
            parts[wanting.pop()] = given
        if wanting:
            raise ConfigError(_tasks_missing(split, self._members[wanting[0]]))
        known = {name: tasks for name, tasks in parts.items() if tasks is not None}
        if empty := [name for name, tasks in known.items() if not len(tasks)]:
            raise DataError(f"member {empty[0]!r} of the mixture brings no tasks of the split {split!r}; leave it out")
        return mixed(known, {name: member.weight for name, member in self._members.items()})

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Say what members find doubtful about theirs."""
        parts = tasks.parts if isinstance(tasks, MixedTasks) else {}
        return [
            f"{name}: {complaint}"
            for name, part in parts.items()
            for complaint in self._members[name].factory().complaints(part)
        ]

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode of the member that the task is for; without a task, of one drawn by the seed."""
        task = (options or {}).get("task")
        if task is None:
            self._drawn_from = self._drawn_from or self.tasks("train", 0)
            task = self._drawn_from[(seed or 0) % len(self._drawn_from)]
        name = member_of(task.id)
        if name not in self._members:
            raise EnvError(f"task {task.id!r} is for none of the members, which are {', '.join(self._members)}")
        if name != self._name:
            await self.close()
            self._env, self._name = self._members[name].factory(), name
        own = own_task(task)
        begun: tuple[Observation, dict[str, Any]] = await _called(
            self._env, lambda env: env.reset(seed=own.seed, options={"task": own})
        )
        return begun

    async def step(self, action: str) -> StepResult:
        """Answer the action as the member does."""
        if self._env is None:
            raise EnvError("Mixture.step was called with no episode running; call reset first")
        outcome: StepResult = await _called(self._env, lambda env: env.step(action))
        return outcome

    async def close(self) -> None:
        """Close the member's environment."""
        env, self._env, self._name = self._env, None, ""
        if env is not None:
            await _called(env, lambda env: env.close())


async def _called(env: Any, function: Callable[[Any], Any]) -> Any:  # Any: of both kinds of environments
    return await function(env) if isinstance(env, AsyncEnv) else await asyncio.to_thread(function, env)


def _own_tasks(member: Member, split: Split, seed: int) -> Sequence[Task] | None:
    """Return the tasks that a member brings; None where others must be given to it."""
    if member.data is not None:
        return member.data.tasks(split)
    if member.factory.env_class.needs_dataset:
        return None
    try:
        return member.factory.tasks(split, seed)
    except ConfigError as error:
        raise type(error)(f"member {member.name!r} of the mixture: {error}") from error


def _tasks_missing(split: Split, member: Member) -> str:
    key, option = ("dataset", "--data.prompt_dataset") if split == "train" else ("eval_dataset", "--eval.dataset")
    what = "tasks" if split == "train" else "held-out tasks"
    return (
        f"member {member.name!r} of the mixture brings no {what} of its own; name a dataset of them with {option}, or "
        f'where several members want one, with the member: {{"id": "{member.factory.spec}", '
        f'"data": {{"{key}": ..., "input_key": ..., "label_key": ...}}}}'
    )


def _whose(split: Split, wanting: Sequence[str]) -> str:
    option = "--data.prompt_dataset" if split == "train" else "--eval.dataset"
    if not wanting:
        return f"{option} is for nobody: each member of the mixture brings tasks of its own; leave it out"
    return (
        f"{option} could be for {' or '.join(wanting)}; name a dataset with each of these members: "
        '{"id": ..., "data": {"dataset": ..., "eval_dataset": ...}}'
    )
