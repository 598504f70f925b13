"""Programs that have to be compiled: once for all inputs, and what the compiler says is their outcome."""

import shutil
from dataclasses import replace

import pytest

from turngym.envs.graders.code import CodeVerdict, Grading
from turngym.envs.graders.code_stdio import Example, OutputTests
from turngym.errors import SandboxError
from turngym.sandbox.base import Sandbox
from turngym.sandbox.job import Job
from turngym.sandbox.results import Ended, ExecResult

from ..unsafe_sandbox import UnsafeSandbox

ADDS = '#include <cstdio>\nint main() { int a, b; scanf("%d %d", &a, &b); printf("%d", a + b); }'
TESTS = OutputTests(tuple(Example(f"{a} 2", str(a + 2)) for a in range(3)))
OK = ExecResult("ok", 0, None, b"", b"", False, False, 0.5, None, None, "none")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Recording(UnsafeSandbox):
    """Answers without running anything."""

    languages = frozenset({"cpp"})

    def __init__(self, *results: ExecResult) -> None:
        super().__init__()
        self.jobs: list[Job] = []
        self.results = list(results)

    async def _run(self, job: Job) -> ExecResult:
        self.maybe_fail("run")
        self.jobs.append(job)
        return self.results.pop(0)


async def grade(sandbox: Sandbox, code: str = ADDS, **options) -> CodeVerdict:
    return await TESTS.grade(code, Grading(sandbox, language="cpp", **options))


async def test_it_is_compiled_once_and_its_time_counts() -> None:
    sandbox = Recording(replace(OK, out=b"artefact"), *(replace(OK, out=out) for out in (b"2", b"3", b"5")))
    verdict = await grade(sandbox)
    assert verdict.outcomes == ("passed", "passed", "wrong")
    assert verdict.wall_s == 2.0
    first, *runs = sandbox.jobs
    assert "g++" in first.argv[2]
    assert first.files == {"main.cpp": ADDS.encode()}
    assert first.limits.wall_s == 10.0
    assert [(job.argv, job.files, job.stdin, job.executable) for job in runs] == [
        (("./main",), {"main": b"artefact"}, example.stdin.encode(), "main") for example in TESTS.examples
    ]
    assert {job.limits.wall_s for job in runs} == {5.0}


@pytest.mark.parametrize(
    ("ended", "outcome", "said"),
    [
        ("nonzero", "error", "it does not compile: main.cpp:1: error"),
        ("signal", "error", "it does not compile: main.cpp:1: error"),
        ("timeout", "timeout", "the compiler ran into a limit"),
        ("memory", "memory", "the compiler ran into a limit"),
    ],
)
async def test_what_does_not_compile_fails_every_test(ended: Ended, outcome: str, said: str) -> None:
    failed = replace(OK, ended=ended, exit_code=1 if ended == "nonzero" else None, err=b"main.cpp:1: error")
    sandbox = Recording(failed)
    verdict = await grade(sandbox)
    assert verdict.outcomes == (outcome,) * 3
    assert said in verdict.failure
    assert len(sandbox.jobs) == 1
    early = await grade(Recording(failed), stops_early=True)
    assert early.outcomes == (outcome, "not run", "not run")


async def test_a_sandbox_that_fails_to_compile_is_no_score() -> None:
    sandbox = Recording()
    sandbox.failing = {"run": 1}
    with pytest.raises(SandboxError, match="run failed"):
        await grade(sandbox)


@needs_compiler
@pytest.mark.slow
async def test_real_programs(sandbox: Sandbox) -> None:
    assert (await grade(sandbox)).is_correct
    assert (await grade(sandbox, ADDS.replace("a + b", "a - b"))).outcomes == ("wrong",) * 3
    broken = await grade(sandbox, ADDS.replace("int a, b", "int a"))
    assert broken.outcomes == ("error",) * 3
    assert "does not compile" in broken.failure
