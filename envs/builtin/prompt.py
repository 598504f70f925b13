"""`Prompt`: a dataset's prompts and a reward function, in one turn."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, EnvError
from ..base import Action, AsyncEnv, StepResult
from ..messages import Message, Observation, RawText
from ..rewards import load_reward, reward_of
from ..task import Split, Task


class Prompt(AsyncEnv):
    """One prompt of a dataset, one answer, scored by a reward function.

    Args:
        remote_url: A Python file with `reward_func`, or HTTP URLs, comma-separated; without one every reward is 0,
            and a reward model is to score the episode.
        apply_chat_template: Show a prompt string as a user's message; otherwise it is sent as it is.
        timeout_s: Deadline of one call of the reward function.
    """

    wants_query = True
    needs_dataset = True

    def __init__(
        self, remote_url: str | None = None, apply_chat_template: bool = False, timeout_s: float = 180.0
    ) -> None:
        self._reward = None if remote_url is None else load_reward(remote_url, timeout_s=timeout_s)
        self._apply_chat_template = apply_chat_template
        self._task: Task | None = None

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Refuse: tasks come from a dataset."""
        raise ConfigError("Prompt has no tasks of its own; name a dataset with --data.prompt_dataset")

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Show the task's prompt."""
        task = (options or {}).get("task")
        if not isinstance(task, Task) or task.prompt is None:
            raise EnvError(
                "Prompt needs a task with a prompt: reset(options={'task': Task(id=..., prompt=..., label=...)})"
            )
        self._task = task
        if isinstance(task.prompt, str):
            return (task.prompt if self._apply_chat_template else RawText(task.prompt)), {}
        return list(task.prompt), {}

    async def step(self, action: str) -> StepResult:
        """Score the answer."""
        if self._task is None:
            raise EnvError("Prompt.step was called with no episode running; call reset first")
        task, self._task = self._task, None
        if self._reward is None:
            return "", 0.0, True, False, {}
        prompt, query = _prompt_and_query(task, action)
        reward = await reward_of(self._reward, task, str(action), prompt, query)
        return "", reward.reward, True, False, {"score": reward.score, "extra_logs": reward.extra_logs}


def _prompt_and_query(task: Task, action: str) -> tuple[str, str]:
    """Return the prompt as the model saw it and the whole text; the prompt is a prefix of it."""
    if isinstance(action, Action) and action.query is not None:
        return action.query.removesuffix(action.raw), action.query
    prompt = task.prompt if isinstance(task.prompt, str) else "\n".join(_text(m) for m in task.prompt or [])
    return prompt, prompt + action


def _text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
