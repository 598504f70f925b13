r"""`PythonTool`: math problems with a Python interpreter as a tool; only the model's own final answer counts."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ConfigError, EnvError
from ...sandbox.limits import Limits
from ..base import AsyncEnv, StepResult
from ..graders.code_text import code_blocks, without_code
from ..messages import Message, Observation
from ..task import Split, Task
from ..tools.json_calls import CLOSE, JSON_CALLS, OPEN, behind_thought
from .math import Math
from .tool_session import SandboxChoice, ToolSession

INSTRUCTION = (
    "You can run Python: end your message with one fenced python block, and you are shown what it prints and the value "
    "of its last line. Variables stay from block to block. When you are done, answer without any code and put your "
    r"final answer within \boxed{}."
)
_DONE = "PythonTool.step was called with no episode running; call reset first"


class PythonTool(AsyncEnv):
    r"""A problem, an interpreter that keeps its state over the turns, and a final answer; reward 1 if that is right.

    A message with a fenced python block, or with a tool call of the Hermes form (`<tool_call>{"name": "python",
    "arguments": {"code": ...}}</tool_call>`), runs the first one as a cell. Nothing else in it counts: what stands
    after the call was written without having seen what came of it. A message without one is the final answer. On the
    last turn nothing is run any more, and what is written outside of code is the answer. So no output of the tool is
    ever graded.

    Args:
        sandbox: Where code runs, `local` or `docker`.
        sandbox_args: For the sandbox.
        max_turns: Messages of the model, the final one included.
        cell_s: Seconds one cell may take.
        memory_mb: Memory of the interpreter, in MiB.
        max_output_chars: Shown of what a cell wrote.
        deadline_s: Seconds one verdict may take.
        system_prompt: A system message before the problem.
        instruction: Said after the problem; empty to say nothing.
    """

    needs_dataset = True

    def __init__(
        self,
        sandbox: str = "local",
        sandbox_args: Mapping[str, Any] | None = None,
        max_turns: int = 6,
        cell_s: float = 10.0,
        memory_mb: int = 512,
        max_output_chars: int = 2000,
        deadline_s: float = 5.0,
        system_prompt: str | None = None,
        instruction: str = INSTRUCTION,
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"PythonTool wants max_turns of 1 or more, got {max_turns}")
        self._problem = Math(deadline_s, system_prompt, instruction)
        self._tool = ToolSession(
            SandboxChoice(sandbox, sandbox_args), Limits(wall_s=cell_s, memory_bytes=memory_mb << 20), max_output_chars
        )
        self._max_turns = max_turns
        self._turns_left = 0
        self._num_cells = 0

    @property
    def can_fork(self) -> bool:
        """Whether the interpreter can be copied."""
        return self._tool.can_fork

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Refuse: tasks come from a dataset."""
        raise ConfigError(
            "PythonTool has no tasks of its own; name a dataset with --data.prompt_dataset and its columns with "
            "--data.input_key and --data.label_key"
        )

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Name labels that cannot be read."""
        return self._problem.complaints(tasks)

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Show the problem; the interpreter of the last one is gone."""
        await self._tool.close()
        shown = await self._problem.reset(seed=seed, options=options)
        self._turns_left, self._num_cells = self._max_turns, 0
        return shown

    async def step(self, action: str) -> StepResult:
        """Run the message's code, or grade it as the answer."""
        if not self._turns_left:
            raise EnvError(_DONE)
        self._turns_left -= 1
        call = _call(str(action))
        if call is None or not self._turns_left:
            return await self._grade(str(action))
        self._num_cells += 1
        said = await self._tool.run_cell(call.code) if call.problem is None else call.problem
        note = "This is your last message." if self._turns_left == 1 else f"{self._turns_left} messages left."
        text = f"{said}\n\n{note}"
        if call.is_fenced:
            return f"Output:\n{text}", 0.0, False, False, {}
        return [Message(role="tool", name="python", content=text)], 0.0, False, False, {}

    async def close(self) -> None:
        """End the interpreter."""
        await self._tool.close()

    async def fork(self) -> "PythonTool":
        """Return an environment in the same state, with an interpreter of its own."""
        twin = copy.copy(self)
        twin._problem = copy.copy(self._problem)
        twin._tool = await self._tool.fork()
        return twin

    async def _grade(self, message: str) -> StepResult:
        self._turns_left = 0
        result = await self._problem.step(_without_calls(without_code(message)))
        return (*result[:4], {**result[4], "extra_logs": {"cells": self._num_cells}})


@dataclass(frozen=True)
class _ToolCall:
    """What a message wants to be run."""

    code: str
    is_fenced: bool
    problem: str | None = None
    """Why it cannot be."""


def _call(message: str) -> _ToolCall | None:
    said = behind_thought(message)
    if OPEN not in said:
        blocks = [block for block in code_blocks(message) if block.is_of("python")]
        return _ToolCall(blocks[0].code, is_fenced=True) if blocks else None
    call = JSON_CALLS.parse(said).calls[0]
    code = call.arguments.get("code")
    if call.problem is None and call.name == "python" and isinstance(code, str):
        return _ToolCall(code, is_fenced=False)
    wanted = '{"name": "python", "arguments": {"code": "..."}}'
    return _ToolCall("", is_fenced=False, problem=f"Nothing was run: a tool call wants the form {wanted}.")


def _without_calls(text: str) -> str:
    first, *others = text.split(OPEN)
    return first + "".join(other.partition(CLOSE)[2] for other in others)
