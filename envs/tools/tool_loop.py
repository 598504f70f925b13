"""What all environments with tools share: turns of calls and results, until the model answers without a call."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, EnvError
from ..base import Action, AsyncEnv, StepResult
from ..messages import Message, Observation
from ..reward import Reward
from ..rewards import load_reward, reward_of
from ..task import Split, Task
from .calls import ParsedAnswer
from .json_calls import JSON_CALLS, behind_thought
from .toolbox import Toolbox, ToolRules
from .turn import as_messages_of, run_calls


class ToolLoop(AsyncEnv, ABC):
    """Shows the task and its tools, answers calls with results, and scores the answer that makes none.

    What stands beside calls counts for nothing: it was written without having seen what came of them. On the last of
    `max_turns` nothing is run any more, and an answer with calls is scored as an empty one. So nothing is ever scored
    that a tool said, or that the model made up in its place.

    Args:
        rules: How an episode goes; also an attribute.
        remote_url: A Python file with `reward_func`, or HTTP URLs; its queries are the prompt and the final answer.
        timeout_s: Deadline of one call of the reward function.
    """

    def __init__(self, rules: ToolRules, remote_url: str | None = None, timeout_s: float = 180.0) -> None:
        self.rules = rules
        self._reward_func = None if remote_url is None else load_reward(remote_url, timeout_s=timeout_s)
        self._toolbox: Toolbox | None = None
        self._task: Task | None = None
        self._turns_left = 0
        self._num_calls = 0
        self._num_errors = 0

    @abstractmethod
    def new_toolbox(self) -> Toolbox:
        """Return the tools of an episode, not yet opened."""

    @property
    def task(self) -> Task:
        """What the episode is about."""
        if self._task is None:
            raise EnvError(f"{type(self).__name__} has no episode running; call reset first")
        return self._task

    @property
    def toolbox(self) -> Toolbox:
        """The tools of the episode."""
        if self._toolbox is None:
            raise EnvError(f"{type(self).__name__} has no episode running; call reset first")
        return self._toolbox

    async def reward(self, answer: str) -> float | Reward:
        """Score the final answer; without a reward function every reward is 0, and a reward model is to score.

        Subclasses override it; `self.task` and `self.toolbox` are still those of the episode.
        """
        if self._reward_func is None:
            return 0.0
        prompt = _text_of(self.task.prompt)
        return await reward_of(self._reward_func, self.task, answer, prompt, prompt + answer)

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Refuse: tasks come from a dataset, or from a subclass."""
        raise ConfigError(
            f"{type(self).__name__} has no tasks of its own; name a dataset with --data.prompt_dataset, or define tasks"
        )

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Say that nothing gives a reward."""
        if self._reward_func is not None or type(self).reward is not ToolLoop.reward:
            return []
        name = type(self).__name__
        return [f"{name} has no reward of its own, so all are 0 unless a reward model scores; give --reward.remote_url"]

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Get the tools ready and show the task; `info["tools"]` holds their schemas, for the model's template."""
        await self.close()
        task = (options or {}).get("task")
        if not isinstance(task, Task) or task.prompt is None:
            raise EnvError(
                f"{type(self).__name__} needs a task with a prompt: "
                "reset(options={'task': Task(id=..., prompt=..., label=...)})"
            )
        self._task = task
        self._toolbox = self.new_toolbox()
        await self._toolbox.open(task)
        self._turns_left, self._num_calls, self._num_errors = self.rules.max_turns, 0, 0
        return self._first(task), {"tools": list(self._toolbox.schemas), **self.rules.info}

    async def step(self, action: str) -> StepResult:
        """Run the answer's calls, or score it."""
        if not self._turns_left:
            raise EnvError(f"{type(self).__name__}.step was called with no episode running; call reset first")
        self._turns_left -= 1
        parsed = parsed_answer(action)
        if not parsed.calls or not self._turns_left:
            return await self._end(parsed)
        shown = await run_calls(self.toolbox, parsed.calls, self.rules)
        messages = as_messages_of(shown, self._num_calls)
        self._num_calls += len(shown)
        self._num_errors += sum(each.is_error for each in shown)
        return messages, 0.0, False, False, {}

    async def close(self) -> None:
        """Free what the tools hold."""
        self._turns_left = 0
        toolbox, self._toolbox = self._toolbox, None
        if toolbox is not None:
            await toolbox.close()

    async def _end(self, parsed: ParsedAnswer) -> StepResult:
        self._turns_left = 0
        reward = await self.reward("" if parsed.calls else parsed.content)
        info: dict[str, Any] = {"extra_logs": {"tool_calls": self._num_calls, "tool_errors": self._num_errors}}
        if not isinstance(reward, Reward):
            return "", reward, not parsed.calls, bool(parsed.calls), info
        info = {"score": reward.score, "extra_logs": {**reward.extra_logs, **info["extra_logs"]}}
        return "", reward.reward, not parsed.calls, bool(parsed.calls), info

    def _first(self, task: Task) -> Observation:
        prompt = (
            [Message(role="user", content=task.prompt)] if isinstance(task.prompt, str) else list(task.prompt or [])
        )
        system = self.rules.system_prompt
        return prompt if system is None else [Message(role="system", content=system), *prompt]


def parsed_answer(action: str) -> ParsedAnswer:
    """Return an answer as its model's parser read it; where none did, as the default one does."""
    parsed = action.parsed if isinstance(action, Action) else None
    return JSON_CALLS.parse(behind_thought(str(action))) if parsed is None else parsed


def _text_of(prompt: str | list[Message] | None) -> str:
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    texts = []
    for message in prompt:
        content = message["content"]
        texts.append(content if isinstance(content, str) else "".join(part.get("text", "") for part in content))
    return "\n".join(texts)
