"""Tests that run a program on an input and compare what it writes; for every language of the sandbox.

A program that has to be compiled is compiled once for all of its inputs; what the compiler says of it is its outcome.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from ...errors import ConfigError
from ...sandbox.compiling import Compiled, compile_program, is_compiled
from ...sandbox.limits import Limits
from ...sandbox.results import ExecResult
from .code import OUTCOME_OF_END, CodeTests, CodeVerdict, Grading, Outcome, cut, first_failure, shown
from .code_compare import Comparison, same_output

_SLACK_BYTES = 64 << 10  # beside twice the right output
_COMPILE_S = 10.0
_COMPILE_BYTES = 512 << 20
"""What a compiler may take where a test may take less."""


@dataclass(frozen=True)
class Example:
    """An input and the output it must give."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class OutputTests(CodeTests):
    """Runs of a whole program, each from a clean start; it must end with exit code 0.

    Raises:
        ConfigError: There are no examples.
    """

    examples: tuple[Example, ...]
    comparison: Comparison = field(default_factory=Comparison)

    def __post_init__(self) -> None:
        if not self.examples:
            raise ConfigError("wanted at least one input to test")

    @property
    def num_tests(self) -> int:
        """How many there are."""
        return len(self.examples)

    def first(self, num_tests: int) -> "OutputTests":
        """Return the first of them."""
        return replace(self, examples=self.examples[:num_tests])

    async def _grade(self, code: str, grading: Grading) -> CodeVerdict:
        outcomes: list[Outcome] = []
        failures: list[str | None] = []
        wall_s, tier = 0.0, None
        run = _as_it_is(code, grading)
        if is_compiled(grading.language):
            compiled = await _compile(code, grading)
            wall_s, tier = compiled.result.wall_s, compiled.result.tier
            if not compiled.is_ok:
                return self._verdict_of_compiler(compiled.result, grading)
            run = _as_compiled(compiled, grading)
        for example in self.examples:
            left_s = grading.total_s - wall_s
            if grading.stops_early and outcomes and outcomes[-1] != "passed":
                outcomes += ["not run"] * (self.num_tests - len(outcomes))
                break
            if left_s <= 0:
                outcomes.append("timeout")
                failures.append("the tests before it took all the time there was")
                continue
            limits = grading.limits(min(grading.test_s, left_s), 2 * len(example.stdout.encode()) + _SLACK_BYTES)
            result = await run(example.stdin.encode(), limits)
            wall_s, tier = wall_s + result.wall_s, result.tier
            outcome, why = self._judge(example, result)
            outcomes.append(outcome)
            failures.append(why and f"with the input {shown(example.stdin)}: {why}")
        failures += [None] * (len(outcomes) - len(failures))
        return CodeVerdict(tuple(outcomes), first_failure(outcomes, failures), wall_s, tier)

    def _verdict_of_compiler(self, result: ExecResult, grading: Grading) -> CodeVerdict:
        """Return the verdict on a program that could not be compiled: it fails every test."""
        how = f"the compiler ran into a limit ({result.ended})"
        outcome: Outcome = "error"
        if result.ended in ("timeout", "memory", "output"):
            outcome = OUTCOME_OF_END[result.ended]
        else:
            how = f"it does not compile: {result.err_text.strip() or f'the compiler ended as {result.ended!r}'}"
        rest: Outcome = "not run" if grading.stops_early else outcome
        outcomes = (outcome, *[rest] * (self.num_tests - 1))
        return CodeVerdict(outcomes, first_failure(outcomes, [how] * len(outcomes)), result.wall_s, result.tier)

    def _judge(self, example: Example, result: ExecResult) -> tuple[Outcome, str | None]:
        if result.ended in ("timeout", "memory", "output"):
            return OUTCOME_OF_END[result.ended], f"the program ran into a limit ({result.ended})"
        if not result.is_ok:
            how = f"exit code {result.exit_code}" if result.signal is None else f"signal {result.signal}"
            return "error", f"{how}, {cut(result.err_text.strip()) or 'nothing on stderr'}"
        if result.is_out_truncated:
            return "output", "the output is far longer than the right one"
        if same_output(result.out_text, example.stdout, self.comparison):
            return "passed", None
        return "wrong", f"wanted {shown(example.stdout)}, got {shown(result.out_text)}"


_Run = Callable[[bytes, Limits], Awaitable[ExecResult]]


def _as_it_is(code: str, grading: Grading) -> _Run:
    async def run(stdin: bytes, limits: Limits) -> ExecResult:
        return await grading.sandbox.run(code, language=grading.language, stdin=stdin, limits=limits)

    return run


def _as_compiled(compiled: Compiled, grading: Grading) -> _Run:
    async def run(stdin: bytes, limits: Limits) -> ExecResult:
        return await grading.sandbox.run(argv=compiled.argv, files=compiled.files, stdin=stdin, limits=limits)

    return run


async def _compile(code: str, grading: Grading) -> Compiled:
    wall_s = min(grading.total_s, max(grading.test_s, _COMPILE_S))
    limits = Limits(wall_s=wall_s, memory_bytes=max(grading.memory_bytes, _COMPILE_BYTES))
    return await compile_program(grading.sandbox, code, grading.language, limits)
