r"""`Math`: a dataset's problems, one answer each, judged by mathematical equality with the label."""

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, EnvError
from ..base import AsyncEnv, StepResult
from ..graders.math import MathGrader, check_labels, shared_grader
from ..messages import Message, instructed
from ..task import Split, Task

CHECKED_LABELS = 200  # about 10 ms each
SHOWN_LABELS = 5
INSTRUCTION = r"Reason step by step, and put your final answer within \boxed{}."


class Math(AsyncEnv):
    r"""One problem, one response; reward 1 if its final answer equals the task's label, else 0.

    A grader without a verdict raises `GraderError`, so that the attempt fails instead of scoring 0.

    Args:
        deadline_s: Seconds one verdict may take.
        system_prompt: A system message before the problem.
        instruction: Said after the problem; empty to say nothing.
    """

    needs_dataset = True

    def __init__(
        self, deadline_s: float = 5.0, system_prompt: str | None = None, instruction: str = INSTRUCTION
    ) -> None:
        if deadline_s <= 0:
            raise ConfigError(f"Math wants deadline_s above 0, got {deadline_s}")
        self._deadline_s = deadline_s
        self._system_prompt = system_prompt
        self._instruction = instruction
        self._label: str | None = None

    @property
    def grader(self) -> MathGrader:
        """The process's grader with this deadline."""
        return shared_grader(self._deadline_s)

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Refuse: tasks come from a dataset."""
        raise ConfigError(
            "Math has no tasks of its own; name a dataset with --data.prompt_dataset and its columns with "
            "--data.input_key and --data.label_key"
        )

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Name labels that cannot be read, among the first `CHECKED_LABELS`: they would fail all run long."""
        checked = [task for task in tasks[:CHECKED_LABELS] if task.label is not None]
        problems = check_labels([str(task.label) for task in checked], self._deadline_s)
        shown = [f"task {checked[index].id!r}: {problem}" for index, problem in problems.items()]
        more = [f"and {len(shown) - SHOWN_LABELS} more labels like these"] if len(shown) > SHOWN_LABELS else []
        return shown[:SHOWN_LABELS] + more

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Show the problem."""
        task = (options or {}).get("task")
        if not isinstance(task, Task) or task.prompt is None:
            raise EnvError(
                "Math needs a task with a prompt: reset(options={'task': Task(id=..., prompt=..., label=...)})"
            )
        self._label = _label_text(task)
        messages = [Message(role="user", content=task.prompt)] if isinstance(task.prompt, str) else list(task.prompt)
        if self._instruction:
            messages = instructed(messages, self._instruction)
        if self._system_prompt is not None:
            messages.insert(0, Message(role="system", content=self._system_prompt))
        return messages, {}

    async def step(self, action: str) -> StepResult:
        """Grade the response."""
        if self._label is None:
            raise EnvError("Math.step was called with no episode running; call reset first")
        label, self._label = self._label, None
        verdict = await self.grader.grade(str(action), label)
        reward = float(verdict.is_correct)
        return "", reward, True, False, {"score": reward, "answer": verdict.answer, "graded_by": verdict.how}


def _label_text(task: Task) -> str:
    label = task.label
    if isinstance(label, bool) or not isinstance(label, str | int | float) or not str(label).strip():
        raise EnvError(
            f"task {task.id!r} has the label {label!r}; Math wants a text or a number: is --data.label_key right?"
        )
    return str(label)
