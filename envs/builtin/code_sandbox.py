"""`CodeSandbox`: write code over several turns, see how it does in public tests, submit; hidden tests grade it."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError, EnvError
from ...sandbox.languages import LANGUAGES
from ...sandbox.limits import Limits
from ..base import AsyncEnv, StepResult
from ..graders.code import CodeTests, CodeVerdict, Grading, cut
from ..graders.code_tests import parse_tests
from ..graders.code_text import Block, code_blocks, without_code
from ..graders.math_text import final_text
from ..messages import Message, instructed
from ..task import LazyTasks, Split, Task
from .code_puzzles import puzzle_task
from .tool_session import SandboxChoice, ToolSession

CHECKED_TASKS = 200
SHOWN_COMPLAINTS = 5
INSTRUCTION = (
    "Put your program into a fenced {language} block: it is run on public tests and you see how it did. A fenced block "
    "labelled run holds Python that is just run, and you see its output. When you are content, write SUBMIT on a line "
    "of its own. You have {turns}; then your last program is taken. Hidden tests decide."
)
_SUBMIT = re.compile(r"^[ *_`]*+submit[ *_`.!]*$", re.IGNORECASE | re.MULTILINE)


class CodeSandbox(AsyncEnv):
    """A programming task over several turns; the reward is 1 if the last program passes all hidden tests, else 0.

    Tests are read from the task's label or from columns of the dataset; docs/graders.md describes their forms. Without
    a dataset, tasks are small puzzles over lists of numbers and words.

    Args:
        sandbox: Where code runs, `local` or `docker`.
        sandbox_args: For the sandbox.
        language: Of the programs.
        max_turns: Messages of the model.
        partial: The reward is the share of hidden tests that pass.
        tests_key: The column of the hidden tests; where the dataset has none of this name, they are the label.
        public_key: The column of the public tests.
        num_public: Without that column, so many of the hidden tests are public too.
        test_s: Seconds one test, or one block that is just run, may take.
        total_s: Seconds all tests of one program may take together; to be far less than the executor's deadline of one
            step, past which a program that hangs would be a failed attempt instead of a wrong one.
        memory_mb: Memory of one program, in MiB.
        max_output_chars: Shown of an outcome.
        instruction: Said after the task, with {language} and {turns}; empty to say nothing.
        system_prompt: A system message before the task.
    """

    def __init__(
        self,
        sandbox: str = "local",
        sandbox_args: Mapping[str, Any] | None = None,
        language: str = "python",
        max_turns: int = 4,
        partial: bool = False,
        tests_key: str = "tests",
        public_key: str = "public_tests",
        num_public: int = 0,
        test_s: float = 5.0,
        total_s: float = 20.0,
        memory_mb: int = 512,
        max_output_chars: int = 2000,
        instruction: str = INSTRUCTION,
        system_prompt: str | None = None,
    ) -> None:
        if max_turns < 1 or num_public < 0:
            raise ConfigError(f"CodeSandbox wants max_turns >= 1 and num_public >= 0, got {max_turns} and {num_public}")
        if total_s <= 0:
            raise ConfigError(f"CodeSandbox wants total_s above 0, got {total_s}")
        LANGUAGES[language]
        self._choice = SandboxChoice(sandbox, sandbox_args)
        self._limits = Limits(wall_s=test_s, memory_bytes=memory_mb << 20)
        self._tool = ToolSession(self._choice, self._limits, max_output_chars)
        self._language, self._total_s, self._partial = language, total_s, partial
        self._tests_key, self._public_key, self._num_public = tests_key, public_key, num_public
        self._max_turns, self._max_output_chars = max_turns, max_output_chars
        self._instruction, self._system_prompt = instruction, system_prompt
        self._hidden: CodeTests | None = None
        self._public: CodeTests | None = None
        self._program: str | None = None
        self._turns_left = 0

    @property
    def can_fork(self) -> bool:
        """Whether the interpreter, if one was begun, can be copied."""
        return self._tool.can_fork

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return 100,000 puzzles; no wording is in both splits."""
        return LazyTasks(100_000, lambda index: puzzle_task(split, seed, index), is_endless=True)

    def complaints(self, tasks: Sequence[Task]) -> list[str]:
        """Name tests that cannot be used, among the first `CHECKED_TASKS`."""
        found = []
        for task in tasks[:CHECKED_TASKS]:
            try:
                self._tests_of(task)
            except EnvError as error:
                found.append(str(error))
        more = [f"and {len(found) - SHOWN_COMPLAINTS} more tasks like these"] if len(found) > SHOWN_COMPLAINTS else []
        return found[:SHOWN_COMPLAINTS] + more

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Show the task."""
        await self._tool.close()
        task = (options or {}).get("task")
        if task is None:
            task = puzzle_task("train", seed or 0, 0)
        if not isinstance(task, Task) or task.prompt is None:
            raise EnvError("CodeSandbox needs a task with a prompt and tests, or none at all")
        self._hidden, self._public = self._tests_of(task)
        self._program, self._turns_left = None, self._max_turns
        messages = [Message(role="user", content=task.prompt)] if isinstance(task.prompt, str) else list(task.prompt)
        if self._instruction:
            turns = "one message" if self._max_turns == 1 else f"{self._max_turns} messages"
            said = self._instruction.replace("{language}", self._language).replace("{turns}", turns)
            messages = instructed(messages, said)
        if self._system_prompt is not None:
            messages.insert(0, Message(role="system", content=self._system_prompt))
        return messages, {}

    async def step(self, action: str) -> StepResult:
        """Run what the message holds, or grade the program."""
        if self._hidden is None or not self._turns_left:
            raise EnvError("CodeSandbox.step was called with no episode running; call reset first")
        self._turns_left -= 1
        blocks = code_blocks(str(action))
        program = _last(blocks, self._language)
        self._program = self._program if program is None else program
        text = without_code(without_code(final_text(str(action)) or "", self._language), "run")
        wants_submit = _SUBMIT.search(text) is not None
        if (wants_submit and self._program is not None) or not self._turns_left:
            return await self._submit(self._hidden)
        said = []
        if program is not None:
            said.append(await self._try(program))
        if (run := next((block for block in blocks if block.is_of("run")), None)) is not None:
            said.append(f"Output:\n{await self._tool.run_cell(run.code)}")
        if not said:
            said.append(
                f"There is no program to submit: put it into a fenced {self._language} block."
                if wants_submit
                else f"I saw no fenced {self._language} block, no block labelled run, and no SUBMIT."
            )
        note = "This is your last message." if self._turns_left == 1 else f"{self._turns_left} messages left."
        return "\n\n".join([*said, note]), 0.0, False, False, {}

    async def close(self) -> None:
        """End the interpreter."""
        await self._tool.close()

    async def fork(self) -> "CodeSandbox":
        """Return an environment in the same state, with an interpreter of its own."""
        twin = copy.copy(self)
        twin._tool = await self._tool.fork()
        return twin

    async def _try(self, program: str) -> str:
        if self._public is None:
            return "There are no public tests; your program is kept."
        verdict = await self._grade(self._public, program, stops_early=False)
        if verdict.is_correct:
            return f"All {verdict.num_tests} public tests passed."
        said = f"{verdict.num_passed} of {verdict.num_tests} public tests passed. First failure, {verdict.failure}"
        return cut(said, self._max_output_chars)

    async def _submit(self, hidden: CodeTests) -> StepResult:
        self._turns_left = 0
        if self._program is None:
            return "", 0.0, True, False, {"score": 0.0, "outcome": "no program"}
        verdict = await self._grade(hidden, self._program, stops_early=not self._partial)
        reward = verdict.share if self._partial else float(verdict.is_correct)
        worst = next((outcome for outcome in verdict.outcomes if outcome != "passed"), "passed")
        logs = {"sandbox_s": verdict.wall_s, "solved": float(verdict.is_correct)}
        return "", reward, True, False, {"score": reward, "outcome": worst, "extra_logs": logs}

    async def _grade(self, tests: CodeTests, program: str, *, stops_early: bool) -> CodeVerdict:
        grading = Grading(
            await self._choice.get(),
            language=self._language,
            test_s=self._limits.wall_s,
            total_s=self._total_s,
            memory_bytes=self._limits.memory_bytes,
            stops_early=stops_early,
        )
        return await tests.grade(program, grading)

    def _tests_of(self, task: Task) -> tuple[CodeTests, CodeTests | None]:
        """Return the hidden and the public tests."""
        hidden, public = task.data.get(self._tests_key, task.label), task.data.get(self._public_key)
        try:
            tests = parse_tests(hidden)
            if public is not None:
                return tests, parse_tests(public)
            return tests, tests.first(self._num_public) if self._num_public else None
        except ConfigError as error:
            raise EnvError(
                f"task {task.id!r} has tests that CodeSandbox cannot use: {error}. It looks for hidden ones in the "
                f"column {self._tests_key!r} or the label, and for public ones in {self._public_key!r}"
            ) from error


def _last(blocks: list[Block], language: str) -> str | None:
    """Return the last block of the language, or the last one without a label."""
    found = [block for block in blocks if block.is_of(language)] or [block for block in blocks if not block.label]
    return found[-1].code if found else None
