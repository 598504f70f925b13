"""Grading code: what tests are, how they are run, and the verdict.

Expected values never enter the sandbox that runs the code: inputs go in, plain data comes out, and the comparison
happens elsewhere. So whatever a program does to its own interpreter, all it can do is claim an output. A program that
fails in any way is wrong; a sandbox that fails raises `SandboxError`, tests that are broken raise `GraderError`, and
neither is a score.
"""

import functools
import importlib.util
import py_compile
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import ConfigError, GraderError, ProgramError
from ...sandbox.base import Sandbox
from ...sandbox.job import check_code
from ...sandbox.limits import Limits
from ...sandbox.results import Ended

Outcome = Literal[
    "passed", "wrong", "error", "not data", "forged", "exited", "timeout", "memory", "output", "refused", "not run"
]
"""How a test went: a wrong value (wrong), an exception or exit code (error), a value that is no plain data (not data:
an object that claims to be equal to everything, for one), a reply that no honest program gives (forged), an end without
a reply (exited), a limit (timeout, memory, output), code that cannot be run at all (refused), left out after a failure
(not run)."""

OUTCOME_OF_END: dict[Ended, Outcome] = {
    "ok": "exited",
    "nonzero": "exited",
    "signal": "exited",
    "killed": "exited",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
}
"""What a test without a reply came to, by how its program ended."""

_SHOWN = 300


@dataclass(frozen=True)
class CodeVerdict:
    """How a program did in its tests."""

    outcomes: tuple[Outcome, ...]
    """One per test."""
    failure: str | None
    """The first failure in words. It quotes the test, so it is for public tests and logs only."""
    wall_s: float
    """Seconds in the sandbox."""
    tier: str | None
    """How well the program was isolated; None if nothing was run."""

    @property
    def num_tests(self) -> int:
        """All tests."""
        return len(self.outcomes)

    @property
    def num_passed(self) -> int:
        """The tests that passed."""
        return sum(outcome == "passed" for outcome in self.outcomes)

    @property
    def is_correct(self) -> bool:
        """Whether all tests passed."""
        return self.num_passed == self.num_tests

    @property
    def share(self) -> float:
        """The share of tests that passed, 0 to 1; only where all were run, so without `stops_early`."""
        return self.num_passed / self.num_tests


@dataclass(frozen=True)
class Grading:
    """How tests are run.

    Raises:
        ConfigError: A limit is 0 or less.
    """

    sandbox: Sandbox
    language: str = "python"
    test_s: float = 5.0
    """Seconds one test may take."""
    total_s: float = 20.0
    """Seconds all tests of one program may take together; the rest of them fails then. Far less than the executor's
    deadline of one step, so that a program that hangs is wrong and not a failed attempt."""
    memory_bytes: int = 512 << 20
    stops_early: bool = False
    """The first failure ends it: enough where only all or nothing counts."""

    def __post_init__(self) -> None:
        for name in ("test_s", "total_s", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0, got {getattr(self, name)!r}")

    def limits(self, wall_s: float, output_bytes: int) -> Limits:
        """Return a sandbox's limits for one run."""
        flood_bytes = max(Limits.flood_bytes, 2 * output_bytes)
        return Limits(wall_s=wall_s, memory_bytes=self.memory_bytes, output_bytes=output_bytes, flood_bytes=flood_bytes)


class CodeTests(ABC):
    """Tests of one program."""

    @property
    @abstractmethod
    def num_tests(self) -> int | None:
        """How many there are; None where only running them tells."""

    @abstractmethod
    def first(self, num_tests: int) -> "CodeTests":
        """Return the first of them, for the model to see.

        Raises:
            ConfigError: They cannot be taken apart, or there are none so many.
        """

    @abstractmethod
    async def _grade(self, code: str, grading: Grading) -> CodeVerdict:
        """Grade code that can be run."""

    async def grade(self, code: str, grading: Grading) -> CodeVerdict:
        """Run the tests.

        Raises:
            GraderError: The tests themselves are broken, or are not for this language.
            SandboxError: The sandbox failed; nothing is known about the program.
        """
        await grading.sandbox.start()
        if grading.language not in grading.sandbox.languages:
            known = ", ".join(sorted(grading.sandbox.languages))
            raise GraderError(f"{grading.language} cannot be run here; this sandbox runs {known}")
        try:
            check_code(code, grading.language)
            return await self._grade(code, grading)
        except ProgramError as error:
            refused: Outcome = "refused"
            return CodeVerdict((refused,) * (self.num_tests or 1), str(error), 0.0, None)


def shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number with more digits than Python writes
        text = f"a very long {type(value).__name__}"
    return cut(text)


def cut(text: str, max_chars: int = _SHOWN) -> str:
    """Return the text, its middle left out if it is long, and what no UTF-8 can say replaced."""
    text = text.encode(errors="replace").decode()
    if len(text) <= max_chars:
        return text
    return f"{text[: max_chars // 2]} ... {text[-max_chars // 2 :]}"


def check_source(source: str, name: str) -> None:
    """Refuse source code of tests that is no Python.

    Raises:
        ConfigError: It cannot be compiled.
    """
    try:
        compile(source, name, "exec")
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{name} is no Python: {error}") from None


def require_python(grading: Grading) -> None:
    """Refuse tests that call functions in another language than Python."""
    if grading.language != "python":
        raise GraderError(f"tests that call functions are for Python only, not {grading.language}")


@functools.cache
def grader_files(*names: str) -> Mapping[str, bytes]:
    """Return modules of this folder as files for a sandbox, in a package `grading` of their own.

    They come compiled as well, which saves half of what a short run takes; another Python than this one compiles anew.
    """
    folder = Path(__file__).parent
    files = {"grading/__init__.py": b""}
    with tempfile.TemporaryDirectory() as compiled:
        for name in ("code_values", *names):
            cache = Path(importlib.util.cache_from_source(f"grading/{name}.py"))
            target = py_compile.compile(
                str(folder / f"{name}.py"),
                cfile=f"{compiled}/{cache.name}",
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            files[f"grading/{name}.py"] = (folder / f"{name}.py").read_bytes()
            files[f"grading/__pycache__/{cache.name}"] = Path(str(target)).read_bytes()
    return files


def first_failure(outcomes: Sequence[Outcome], failures: Sequence[str | None]) -> str | None:
    """Return what is said about the first test that did not pass."""
    for number, (outcome, failure) in enumerate(zip(outcomes, failures, strict=True), 1):
        if outcome != "passed":
            return f"test {number} of {len(outcomes)}: {cut(failure or outcome, 4 * _SHOWN)}"
    return None
