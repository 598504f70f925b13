"""`AgentFile`: an OpenRLHF `agent_func.py` as an environment."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import ConfigError, EnvError
from ...registry import nearest
from ..base import AsyncEnv, StepResult
from ..factory import EnvFactory
from ..messages import Observation, RawText
from ..task import Split, Task
from .sampling import SamplingParams
from .session import AgentSession
from .stand_in import load_file

EXECUTOR = "AgentExecutor"
_MULTI_TURN = "MultiTurnAgentExecutor"  # by name: it may be that of an installed OpenRLHF


class AgentFile(AsyncEnv):
    """The agent of a file written for OpenRLHF's `--train.agent_func_path`: its text is appended token for token.

    An executor with an `execute` of its own has no steps, and cannot be reset; it is for
    `executors.own_agents.agent_file`.

    Args:
        path: The file; it exports `AgentExecutor`.
        sampling: What the agent is shown of how turns are sampled: fields of `SamplingParams`.
    """

    needs_dataset = True

    def __init__(self, path: str, sampling: dict[str, Any] | None = None) -> None:
        executor = shared_executor(path)
        self._source = repr(path)
        self._agent_class: type[Any] | None = executor.agent_instance_cls if is_multi_turn(executor) else None
        self._given = SamplingParams(**(sampling or {}))
        self._session: AgentSession | None = None

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Refuse: tasks come from a dataset."""
        raise ConfigError(
            f"the agent of {self._source} has no tasks of its own; name a dataset with "
            + ("--data.prompt_dataset" if split == "train" else "--eval.dataset")
        )

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Let the agent begin with the task's prompt, which is text: a chat template is applied by then."""
        task = (options or {}).get("task")
        if not isinstance(task, Task) or not isinstance(task.prompt, str):
            raise EnvError(
                f"the agent of {self._source} needs a task whose prompt is text; for chat messages give "
                "--data.apply_chat_template"
            )
        if self._agent_class is None:
            raise EnvError(f"{EXECUTOR} of {self._source} runs episodes by itself; it is no environment with steps")
        self._session = await AgentSession.begin(self._agent_class, task.prompt, task.label, self._given, self._source)
        return RawText(self._session.observation_text, getattr(task.prompt, "images", ())), {}

    async def step(self, action: str) -> StepResult:
        """Pass on what the model wrote, special tokens and all, and return what the agent answers."""
        if self._session is None:
            raise EnvError(f"the agent of {self._source} was stepped with no episode running; call reset first")
        answer = await self._session.step(getattr(action, "raw", action))
        info: Mapping[str, Any] = {
            "score": answer.score,
            "extra_logs": answer.extra_logs,
            "sampling": answer.resampled,
        }
        return RawText(answer.feedback, answer.images), answer.reward, answer.is_done, False, dict(info)


def agent_file(path: str, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Return what makes environments of an agent's file, which is imported now.

    Raises:
        ConfigError: There is no such file, it exports no `AgentExecutor`, or takes no such arguments.
    """
    file = str(Path(path).expanduser().resolve())
    shared_executor(file)
    target = f"{AgentFile.__module__}:{AgentFile.__name__}"
    factory = EnvFactory(f"func:{path}", target, {"path": file, **kwargs}, str(Path.cwd()))
    factory.check_kwargs()
    return factory


@cache
def shared_executor(path: str) -> Any:  # Any: an AgentExecutorBase, of ours or of an installed OpenRLHF
    """Return the `AgentExecutor` of a file, made without arguments, one per process.

    Raises:
        ConfigError: The file has none, or it cannot be made.
    """
    module = load_file(path)
    made_of = getattr(module, EXECUTOR, None)
    if not isinstance(made_of, type) or not hasattr(made_of, "execute"):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        raise ConfigError(f"{path!r} exports no class {EXECUTOR} with an execute.{nearest(EXECUTOR, classes)}")
    try:
        return made_of()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{EXECUTOR}() of {path!r} raised {type(error).__name__}: {error}") from error


def takes_images(executor: Any) -> bool:
    """Whether `execute` of an executor takes `images`; files from before OpenRLHF had any do not."""
    parameters = inspect.signature(executor.execute).parameters.values()
    return any(parameter.name == "images" or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def is_multi_turn(executor: Any) -> bool:
    """Whether an executor only holds an agent class, so that its episodes are turns of an environment."""
    owner = next(cls for cls in type(executor).__mro__ if "execute" in vars(cls))
    return owner.__name__ == _MULTI_TURN and hasattr(executor, "agent_instance_cls")
