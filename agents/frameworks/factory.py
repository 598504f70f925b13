"""From what `--agent func:...`, `command:...` and `framework:...` say to what runs such agents, here or elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...envs.factory import EnvFactory
from ...envs.rewards import load_reward
from ...envs.task import Split, Task
from ...errors import ConfigError, UnknownNameError
from ...registry import nearest, with_absolute_file
from ...source_file import add_search_folder
from .base import UserAgent
from .command import CommandAgent
from .frameworks import FRAMEWORKS, FrameworkAgent
from .function import FunctionAgent


@dataclass(frozen=True)
class AgentFactory:
    """Makes what runs a user's agent; small and picklable.

    Attributes:
        spec: What the user wrote, for messages.
        kind: `func`, `command` or `framework`.
        target: What follows it, with the path of a file made absolute.
        kwargs: Its own arguments.
        folder: Where the run was started: modules are also looked for there, and commands run there.
        remote_url: The reward function; None where what the agent returns is its reward.
        reward_timeout_s: Deadline of one call of it.
    """

    spec: str
    kind: str
    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    folder: str = "."
    remote_url: str | None = None
    reward_timeout_s: float = 180.0

    def __call__(self) -> UserAgent:
        """Make it.

        Raises:
            ConfigError: There is none such, or it does not take these arguments.
        """
        add_search_folder(self.folder)
        return KINDS[self.kind](self)

    def tasks(self, split: Split, seed: int, given: Sequence[Task] | None = None) -> Sequence[Task]:
        """Return the tasks of a dataset, which are `given`, or those of the agent's own file.

        Raises:
            ConfigError: There are none.
        """
        found = self().tasks(split, seed) if given is None else given
        if found is None:
            option = "--data.prompt_dataset" if split == "train" else "--eval.dataset"
            hint = "" if self.kind == "command" else f", or define tasks(split, seed) beside {self._function!r}"
            raise ConfigError(f"--agent {self.spec} brings no tasks; name a dataset with {option}{hint}")
        return found

    def check(self) -> None:
        """Look for the agent and its reward function.

        Raises:
            ConfigError: One of them cannot be used.
        """
        self()
        if self.remote_url is not None:
            load_reward(self.remote_url, timeout_s=self.reward_timeout_s)

    def complaints(self) -> list[str]:
        """Return what is doubtful."""
        return [] if self.remote_url is not None else self().complaints()

    @property
    def members(self) -> Mapping[str, EnvFactory]:
        """None: agents are not mixed."""
        return {}

    @property
    def _function(self) -> str:
        return str(self.kwargs.get("entry", self.target))


def _function_agent(factory: AgentFactory) -> UserAgent:
    return FunctionAgent(factory.target, factory.kwargs)


def _command_agent(factory: AgentFactory) -> UserAgent:
    return CommandAgent(factory.target, factory.kwargs, factory.folder)


def _framework_agent(factory: AgentFactory) -> UserAgent:
    return FrameworkAgent(factory.target, factory.kwargs)


KINDS: dict[str, Callable[[AgentFactory], UserAgent]] = {
    "func": _function_agent,
    "command": _command_agent,
    "framework": _framework_agent,
}


def resolve_agent(
    spec: str,
    kwargs: Mapping[str, Any] | None = None,
    *,
    remote_url: str | None = None,
    reward_timeout_s: float = 180.0,
) -> AgentFactory:
    """Find the agent that `spec` names, and check its arguments and its reward function.

    Args:
        spec: `func:FILE.py[:NAME]`, `func:module:NAME`, `command:PROGRAM ARGUMENTS` or `framework:NAME`.
        kwargs: Its own arguments.
        remote_url: See `AgentFactory`.
        reward_timeout_s: See `AgentFactory`.

    Raises:
        UnknownNameError: No such framework; names the nearest.
        ConfigError: It cannot be used.
    """
    kind, _, target = spec.partition(":")
    if kind not in KINDS or not target:
        raise ConfigError(f"--agent {spec!r}: wanted func:FILE.py:NAME, command:'PROGRAM ARGUMENTS' or framework:NAME")
    own = dict(kwargs or {})
    if kind == "func":
        target = with_absolute_file(f"{target}:run" if target.endswith(".py") else target)
    if kind == "framework" and target not in FRAMEWORKS and ":" not in target:
        raise UnknownNameError(f"unknown agent framework {target!r}.{nearest(target, FRAMEWORKS)}")
    for name in ("entry", "score") if kind == "framework" else ():
        if isinstance(own.get(name), str):
            own[name] = with_absolute_file(own[name])
    factory = AgentFactory(spec, kind, target, own, str(Path.cwd()), remote_url, reward_timeout_s)
    factory.check()
    return factory
