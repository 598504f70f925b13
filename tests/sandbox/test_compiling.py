"""A program is compiled once, and what comes of it runs on any input."""

import shutil

import pytest

from turngym.errors import ProgramError
from turngym.sandbox import compiling
from turngym.sandbox.compiling import compile_program, is_compiled
from turngym.sandbox.job import make_job
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.backend import LocalSandbox

DOUBLES = """
#include <iostream>
int main() { long n; std::cin >> n; std::cout << 2 * n << "\\n"; return n == 13 ? 3 : 0; }
"""
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@needs_compiler
@pytest.mark.slow
async def test_a_program_is_compiled_once_and_run_on_many_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LocalSandbox(num_workers=1) as sandbox:
        compiled = await compile_program(sandbox, DOUBLES, "cpp", Limits())
        assert (compiled.is_ok, compiled.result.ended, compiled.result.out) == (True, "ok", b"")
        assert compiled.files["main"].startswith(b"\x7fELF")
        for number, code in ((4, 0), (13, 3), (-7, 0)):
            result = await sandbox.run(argv=compiled.argv, files=compiled.files, stdin=str(number).encode())
            assert (result.out, result.exit_code) == (f"{2 * number}\n".encode(), code)
        broken = await compile_program(sandbox, "int main() { return x; }", "cpp", Limits())
        assert (broken.is_ok, broken.result.ended) == (False, "nonzero")
        assert "main.cpp:1:21: error:" in broken.result.err_text
        late = await compile_program(sandbox, DOUBLES, "cpp", Limits(wall_s=0.01))
        assert (late.is_ok, late.result.ended) == (False, "timeout")
        monkeypatch.setattr(compiling, "_MAX_ARTEFACT_BYTES", 1000)
        with pytest.raises(ProgramError, match="more than 1,000 bytes"):
            await compile_program(sandbox, DOUBLES, "cpp", Limits())


async def test_what_is_run_as_it_is_cannot_be_compiled() -> None:
    assert [is_compiled(language) for language in ("cpp", "python", "bash")] == [True, False, False]
    with pytest.raises(ProgramError, match="bash are run as they are"):
        await compile_program(LocalSandbox(), "true", "bash", Limits())


def test_one_run_of_a_compiled_language_does_both() -> None:
    job = make_job("int main() {}", "cpp", None, b"", None, Limits())
    assert job.argv == ("bash", "-c", "g++ -std=c++17 -O1 -o main main.cpp && exec ./main")
    assert job.files == {"main.cpp": b"int main() {}"}


@pytest.mark.parametrize(
    ("word", "executable"),
    [
        ("./tool", "tool"),
        ("/box/tool", "tool"),
        ("./sub/../tool", None),  # no path that leads anywhere up
        ("tool", None),  # looked up in PATH
        ("./other", None),
        ("/bin/tool", None),
    ],
)
def test_the_file_that_a_command_names_can_be_executed(word: str, executable: str | None) -> None:
    assert make_job(None, "python", [word], b"", {"tool": b"", "sub/x": b""}, Limits()).executable == executable
